"""The demo model: a small Llama for a lunch-box shop, with its weights, its dialogues and its recall table."""
