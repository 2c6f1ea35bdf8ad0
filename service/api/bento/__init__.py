"""The package holds what the service gives to BentoML besides the app: an image, the models of a bento, two methods."""
