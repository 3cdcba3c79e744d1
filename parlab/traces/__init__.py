"""Traces of profilers -> intervals -> breakdown by rank and step, collectives. Pure; see docs/use/time.md."""
