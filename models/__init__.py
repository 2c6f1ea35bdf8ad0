"""The model repository: versions, their facts, and how versions come to be. It works with no server running."""

__version__ = "0.1.0"
"""Of the whole software, also where it runs as source that was never installed, as in a bento."""
