"""The load runner: a scenario's load on a running server, judged by the scenario's limits. See docs/load.md."""
