"""The model repository: versions, their facts, and how versions come to be. It works with no server running."""
