"""The package reads foreign checkpoints from their sources and checks them before any library opens them."""
