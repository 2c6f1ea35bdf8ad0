"""The demo model: a small Llama for a lunch-box shop, its seeded corpus, its training and its measured recall."""
