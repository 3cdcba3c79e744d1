"""Benchmarks: `python -m bench [names] [--quick]`. See docs/bench.md."""
