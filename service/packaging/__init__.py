"""Packaging is what the service brings to BentoML besides the app: an image, the models of a bento, two methods."""
