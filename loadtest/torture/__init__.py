"""The harness loads a service, harms it, and holds what clients saw against what the service keeps."""
