"""A store keeps versions for many instances, in a directory or an S3 bucket; each instance caches what it serves."""
