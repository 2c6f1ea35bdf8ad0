"""What a model is: its versions, their facts, and how they come to be. Works with no server running."""

__version__ = "0.1.0"
"""Of the whole software, also where it runs as source that was never installed, as in a bento."""
