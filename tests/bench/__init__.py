"""Benchmarks: `python -m tests.bench [names] [--quick]`. See docs/bench.md."""
