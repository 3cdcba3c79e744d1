"""How the numbers in the table of a run's figure came about, where a file states them."""

from __future__ import annotations

from parlab.charts.theme import Table
from parlab.lab.models import Run
from parlab.publishing.figures.run_curves import TIMER

_OF_ENGINES = frozenset({"bandwidth", "capacity", "devices"})
"""Figures of what parlab's engines measure and of settings."""


def with_kinds(run: Run, name: str, table: Table) -> Table:
    """Return the table of a figure of a run with the kind of each row, if a file states its numbers."""
    if not run.has_printed_numbers or name in _OF_ENGINES or "kind" in table.header or not table.header:
        return table
    kinds = [run.series_kind(metric) for metric in _metrics(table)]
    return Table([*table.header, "kind"], [[*row, kind] for row, kind in zip(table.rows, kinds, strict=True)])


def _metrics(table: Table) -> list[str]:
    """Return the series of each row: rows name it or its timer, or the last column is of one series."""
    prefix = {"series": "", "timer": TIMER}.get(table.header[0])
    return [table.header[-1] if prefix is None else f"{prefix}{row[0]}" for row in table.rows]
