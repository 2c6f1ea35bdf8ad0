"""Dashboards and alerts as data, and the program that writes them: `make dashboards`."""
