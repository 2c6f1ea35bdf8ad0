"""Dialogues that people wrote apart from the corpus, and the checks of a model's answers in them."""
