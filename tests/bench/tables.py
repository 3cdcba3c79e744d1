"""The tables of docs/contribute/bench.md: `python -m tests.bench.tables` writes them from build/bench.json.

A benchmark that is not in build/bench.json keeps the figure of the page.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from tests.bench import ROOT
from tests.bench.benchmark import Benchmark
from tests.bench.campaigns.registry import CAMPAIGNS
from tests.bench.registry import BENCHMARKS
from tests.bench.running import measured_before, number

PAGE = ROOT / "docs" / "contribute" / "bench.md"
_HEAD = "| benchmark | work | beside it | target | takes (s) | measured | on |"
Measured = tuple[str, str]
"""What a row states of a measurement: value, ratio and alternative, and its date."""


def with_tables(text: str, measured: Mapping[str, Measured]) -> str:
    """Return the text with its tables in the order of the registry; figures that are not `measured` stay."""
    known = {**dict(_stated(text)), **measured}
    tables = iter([BENCHMARKS, *(campaign.benchmarks for campaign in CAMPAIGNS)])
    lines = list[str]()
    is_inside = False
    for line in text.splitlines():
        if line == _HEAD:
            lines += _table(next(tables), known)
            is_inside = True
        is_inside = is_inside and line.startswith("|")
        if not is_inside:
            lines.append(line)
    if left := next(tables, None):
        raise ValueError(f"the page has no table with {left[0].name}; add a line {_HEAD!r} at its place")
    return "\n".join(lines) + "\n"


def _table(benchmarks: Sequence[Benchmark], known: Mapping[str, Measured]) -> Iterator[str]:
    yield _HEAD
    yield "|---|---|---|---|---|---|---|"
    for row in benchmarks:
        target = f"{row.target} {row.unit}" if row.target else ""
        cells = (f"`{row.name}`", row.work, row.against, target, str(row.seconds), *known.get(row.name, ("", "")))
        yield f"| {' | '.join(cells)} |".replace("  ", " ")


def _stated(text: str) -> Iterator[tuple[str, Measured]]:
    """Yield name and measurement of each row of a page."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == _HEAD.count("|") - 1:
            yield cells[0].strip("`"), (cells[-2], cells[-1])


def measurements(output: Path) -> dict[str, Measured]:
    """Return what rows state of the figures in a file of `make bench`."""
    results = measured_before(output)
    measured = dict[str, Measured]()
    for row in chain(BENCHMARKS, *(campaign.benchmarks for campaign in CAMPAIGNS)):
        if result := results.get(row.name):
            text = f"{number(result['value'])} {row.unit}"
            is_missed = row.target and not row.target.is_met(result["value"])
            ratio = "" if row.unit == "x" else f", {number(result['ratio'])} x"
            text = f"{f'**{text}**' if is_missed else text}{ratio}; {result['against']}"
            measured[row.name] = text, result["measured_at"][:10]
    return measured


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "bench.json"
    PAGE.write_text(with_tables(PAGE.read_text(), measurements(source)))
