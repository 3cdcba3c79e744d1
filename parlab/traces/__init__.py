"""Traces of profilers -> intervals -> breakdown by rank and step, collectives over ranks. Pure; see docs/time.md."""
