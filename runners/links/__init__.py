"""Delay and rate limits on the links between a run's ranks. See docs/understand/network.md."""
