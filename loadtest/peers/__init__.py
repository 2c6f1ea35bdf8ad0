"""One driver a peer: each runs in that peer's own environment and speaks lines of JSON (see `driver`)."""
