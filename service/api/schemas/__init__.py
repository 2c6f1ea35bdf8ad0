"""The wire shapes, one module a dialect. Parsed once at the edge; inside the service only domain types exist."""
