"""Findings as lists and panels show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parlab.findings import RULES
from parlab.lab.models import Finding
from parlab.lab.selectors.figures import figure_title
from parlab.lab.selectors.sources import Line, source_lines


class FindingRow(NamedTuple):
    """A finding as lists and panels show it."""

    finding: Finding
    title: str
    """What the rule says must agree."""
    numbers: list[tuple[str, float]]
    """The numbers that were compared, by name."""
    place: str
    """Where it is, in words; without the lines of its source."""
    lines: str
    """Lines of its source, as words; empty where it has none."""
    excerpt: Sequence[Line] = ()
    """Those lines themselves, where a page wants them."""


def finding_rows(findings: Iterable[Finding]) -> list[FindingRow]:
    """Shape findings for a list."""
    return [
        FindingRow(
            finding,
            RULES[finding.rule].title if finding.rule in RULES else "",
            [(figure_title(name), value) for name, value in finding.numbers.items()],
            _place(finding),
            _lines(finding.lines) if finding.source_id else "",
        )
        for finding in findings
    ]


def _place(finding: Finding) -> str:
    where, words = finding.where, []
    if "segment" in where:
        words.append(f"launch {where['segment'] + 1}")
    if "table" in where:
        words.append(f"table {where['table'] + 1}")
    if "row" in where:
        words.append(f"row {where['row'] + 1}")
    if "column" in where:
        words.append(f"column {where['column'] + 1}")
    if where.get("figure"):
        words.append(str(where["figure"]).replace("_", " "))
    return ", ".join(words)


def _lines(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    if len(lines) > 3:
        return f"lines {lines[0]} to {lines[-1]}"
    return ("line " if len(lines) == 1 else "lines ") + " and ".join(map(str, lines))


def with_excerpts(rows: Sequence[FindingRow], limit: int = 3) -> list[FindingRow]:
    """Add the lines of the files to the first findings; a line far down in a large log takes a second to find."""
    return [_with_excerpt(row) for row in rows[:limit]] + list(rows[limit:])


def _with_excerpt(row: FindingRow) -> FindingRow:
    source, line = row.finding.source, row.finding.line
    if source is None or line is None:
        return row
    return row._replace(excerpt=source_lines(source, line, line, around=1))
