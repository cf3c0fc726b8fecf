"""The remote on the Hugging Face Hub."""
