"""The doctor says what this host can serve: its facts, forecasts of memory and speed, and checks with a way out."""
