"""A summary report in Markdown: numbers with markers for their findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")


class Cell(NamedTuple):
    """A table cell and the numbers of the findings about it, from 1."""

    text: str
    doubts: Sequence[int] = ()


class Doubt(NamedTuple):
    """A finding as shown in a report."""

    severity: str
    message: str
    rule: str
    acknowledged: str = ""
    """Reason of the acknowledgement; empty for an open finding."""


class Report(NamedTuple):
    """The contents of a summary report of an experiment."""

    title: str
    question: str
    source: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    doubts: Sequence[Doubt]


def markdown(report: Report) -> str:
    """Return a report as Markdown; a triangle marks a number with the number of its finding."""
    parts = [f"# {plain(report.title)}"]
    parts += [plain(text) for text in (report.question, report.source) if text]
    if report.rows:
        head = [f"| {' | '.join(plain(column) for column in report.columns)} |", "|" + " --- |" * len(report.columns)]
        parts.append(
            "\n".join([*head, *(f"| {' | '.join(_cell_markdown(cell) for cell in row)} |" for row in report.rows)])
        )
    else:
        parts.append("No runs yet.")
    if report.doubts:
        parts.append("## Findings")
        parts.append("\n".join(doubt_line(number, doubt) for number, doubt in enumerate(report.doubts, 1)))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return a text on one line with all markup escaped."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _cell_markdown(cell: Cell) -> str:
    return " ".join([plain(cell.text), *(f"▲{number}" for number in cell.doubts)])


def doubt_line(number: int, doubt: Doubt) -> str:
    line = f"{number}. ▲{number} **{doubt.severity}** {plain(doubt.message)} (rule {plain(doubt.rule)})"
    return f"{line} Acknowledged: {plain(doubt.acknowledged)}" if doubt.acknowledged else line
