"""Tuning finds the settings with which a model serves a load best on this host: `dosirak tune`."""
