"""Scenarios say what load a server or an engine gets: `loadtest.run` and `dosirak tune` read the same files."""
