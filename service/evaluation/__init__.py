"""The package measures how good and how fast a version is, through the engine that serves it. No server runs."""
