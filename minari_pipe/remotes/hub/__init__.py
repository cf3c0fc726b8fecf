"""Host datasets on the Hugging Face Hub."""
