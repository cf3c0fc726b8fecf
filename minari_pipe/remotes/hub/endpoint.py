"""Check the address of the Hub, before ``huggingface_hub`` is imported and fails with it."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from minari_pipe.core.messages import without_credentials
from minari_pipe.errors import ConfigError


def check_endpoint() -> None:
    """Raise an error unless ``HF_ENDPOINT`` is unset or an address to which requests can be sent.

    Raises:
        ConfigError: it is not; the message shows no password.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        _ = parts.port  # raises
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable or re.search(r"\s", endpoint):
        shown = without_credentials(re.sub(r"\s", "%20", endpoint))
        raise ConfigError(
            f"HF_ENDPOINT is {shown!r}; expected an address such as https://huggingface.co, with a "
            "port from 0 to 65535 if it has one"
        )
