"""The package makes the live figures: what every version does now, once a second, while somebody listens."""
