"""Profiles record the steps of a running engine by operator. They are kept with their version."""
