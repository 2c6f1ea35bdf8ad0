"""The package keeps files that clients upload, and those that batches make."""
