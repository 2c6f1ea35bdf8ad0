"""How good and how fast a version is, measured through the engine that serves it. Offline: no server, no socket."""
