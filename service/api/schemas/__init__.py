"""The wire shapes are pydantic models, one module a dialect. The edge parses them once; inside the service only domain
types exist."""
