"""Findings as lists and panels show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parlab.charts.format import exact, printed_digits, quantity, significant
from parlab.findings import RULES
from parlab.lab.models import Comment, Finding
from parlab.lab.selectors.figures import figure_title, figure_value
from parlab.lab.selectors.sources import Line, source_lines


class FindingRow(NamedTuple):
    """A finding as displayed in lists and panels."""

    finding: Finding
    title: str
    """Title of the rule."""
    numbers: list[tuple[str, str, str]]
    """The compared numbers: name, value with unit, all digits."""
    place: str
    """The place in the document as text, without lines."""
    lines: str
    """The lines of its source as text; empty without lines."""
    comments: Sequence[Comment] = ()
    excerpt: Sequence[Line] = ()
    """The lines of the source with their context, if requested."""


def finding_rows(findings: Iterable[Finding]) -> list[FindingRow]:
    findings = list(findings)
    comments: dict[int, list[Comment]] = {}
    ids = [finding.pk for finding in findings]
    for comment in Comment.objects.with_people().filter(finding__in=ids) if ids else ():
        comments.setdefault(comment.finding_id or 0, []).append(comment)
    return [
        FindingRow(
            finding,
            RULES[finding.rule].title if finding.rule in RULES else "",
            [
                (figure_title(name), number_text(name, value, finding.message), exact(value))
                for name, value in sorted(finding.numbers.items(), key=_stated_first)
            ],
            _place_text(finding),
            _lines_text(finding.lines) if finding.source_id else "",
            comments.get(finding.pk, ()),
        )
        for finding in findings
    ]


def _stated_first(number: tuple[str, float]) -> tuple[str, bool]:
    """Order numbers with what is stated before what is expected; PostgreSQL does not keep the order of a rule."""
    name = number[0]
    return name.removeprefix("expected_"), name.startswith("expected_")


_SHARES = ("efficiency", "mfu", "hfu", "utilisation", "share")


_RATES = ("throughput", "expected_throughput", "aggregate", "per_gpu", "expected_aggregate")
"""Numbers in the unit of the source, which the message states."""
_RATE = re.compile(r"\d (\w+/s)(?!\w)")


def number_text(name: str, value: float, message: str) -> str:
    """Write a compared number with readable digits and the unit that its name or the message states."""
    if name in _RATES and (rate := _RATE.search(message)):
        return f"{significant(value, printed_digits(value))} {rate[1]}"
    if name.endswith("_ms"):
        return f"{significant(value)} ms"
    if "tflops" in name:
        return f"{significant(value)} TFLOP/s"
    if name.startswith(_SHARES) and not name.endswith("_pct"):
        return f"{significant(100 * value)} %"
    if name.endswith("flops_per_step"):
        return quantity(value, "FLOP")
    if name.endswith("_per_s") and value == int(value):
        return f"{exact(value)} {name.removesuffix('_per_s').rpartition('_')[2]}/s"
    return figure_value(name, {"value": value})


def _place_text(finding: Finding) -> str:
    where, parts = finding.where, []
    if "segment" in where:
        parts.append(f"launch {where['segment'] + 1}")
    if "table" in where:
        parts.append(f"table {where['table'] + 1}")
    if "row" in where:
        parts.append(f"row {where['row'] + 1}")
    if "column" in where:
        parts.append(f"column {where['column'] + 1}")
    if where.get("figure"):
        parts.append(str(where["figure"]).replace("_", " "))
    return ", ".join(parts)


def _lines_text(lines: Sequence[int]) -> str:
    if not lines:
        return ""
    if len(lines) > 3:
        return f"lines {lines[0]} to {lines[-1]}"
    return ("line " if len(lines) == 1 else "lines ") + " and ".join(map(str, lines))


def with_excerpts(rows: Sequence[FindingRow], limit: int = 3) -> list[FindingRow]:
    """Add excerpts of the source to the first findings; seeking a line near the end of a large log takes a second."""
    return [_with_excerpt(row) for row in rows[:limit]] + list(rows[limit:])


def _with_excerpt(row: FindingRow) -> FindingRow:
    source, line = row.finding.source, row.finding.line
    if source is None or line is None:
        return row
    return row._replace(excerpt=source_lines(source, line, line, around=1))
