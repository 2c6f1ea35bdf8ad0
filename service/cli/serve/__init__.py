"""The start is what `dosirak serve` does around `bentoml serve`: checks before it, the terminal beside it, its end."""
