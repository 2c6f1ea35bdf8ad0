"""The hub package gets checkpoints from a Hugging Face hub. It publishes nothing and opens no weights."""
