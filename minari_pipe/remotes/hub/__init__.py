"""Host datasets on the Hugging Face Hub."""

from minari_pipe.remotes.hub.endpoint import check_endpoint

check_endpoint()
