"""The package holds the model repository: versions, their facts, and how versions are made. It needs no server."""

__version__ = "0.1.0"
"""The version of the whole software, also where it runs as source without an installation, as in a bento."""
