"""A report in Markdown: numbers with what doubts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")


class Cell(NamedTuple):
    """A text of a table and the findings that doubt it, by their place in the report's list from 1."""

    text: str
    doubts: Sequence[int] = ()


class Doubt(NamedTuple):
    """A finding as a report tells it."""

    severity: str
    message: str
    rule: str
    acknowledged: str = ""
    """Why a person says that it is no fault; empty while it is open."""


class Report(NamedTuple):
    """What a report says of an experiment."""

    title: str
    question: str
    source: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    doubts: Sequence[Doubt]


def markdown(report: Report) -> str:
    """Write a report; a doubted number carries a triangle with the number of its finding."""
    parts = [f"# {plain(report.title)}"]
    parts += [plain(text) for text in (report.question, report.source) if text]
    if report.rows:
        head = [f"| {' | '.join(plain(column) for column in report.columns)} |", "|" + " --- |" * len(report.columns)]
        parts.append("\n".join([*head, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in report.rows)]))
    else:
        parts.append("No runs yet.")
    if report.doubts:
        parts.append("## Findings")
        parts.append("\n".join(doubt_line(number, doubt) for number, doubt in enumerate(report.doubts, 1)))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Make a text of one line that is no markup, whoever wrote it."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _cell(cell: Cell) -> str:
    return " ".join([plain(cell.text), *(f"▲{number}" for number in cell.doubts)])


def doubt_line(number: int, doubt: Doubt) -> str:
    said = f"{number}. ▲{number} **{doubt.severity}** {plain(doubt.message)} (rule {plain(doubt.rule)})"
    return f"{said} Acknowledged: {plain(doubt.acknowledged)}" if doubt.acknowledged else said
