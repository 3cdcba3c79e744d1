"""Give the links between a run's ranks a delay and a rate. See docs/network.md."""
