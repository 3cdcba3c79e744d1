"""Benchmarks of minutes or of other machines, each a command of its own. See docs/contribute/bench.md."""
