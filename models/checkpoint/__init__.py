"""Foreign checkpoints: where they come from and the checks that they must pass before anything opens them."""
