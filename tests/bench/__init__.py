"""Benchmarks: `python -m tests.bench [names] [--quick]`. See docs/contribute/bench.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
