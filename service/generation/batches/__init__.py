"""The package answers batches: files of requests, line by line, in the time that clients' requests leave over."""
