"""The faults of campaigns as lines of JSON, which add up over campaigns, and their table."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

RECOVERY_S = 30.0
"""Everything has to work again this long after a fault, on a quiet machine."""


@dataclass
class Row:
    """One fault and its outcome."""

    number: int
    kind: str
    victim: str
    recovered_s: float
    """Until all runs made steps again, with nothing else alive."""
    ended_s: float | None
    """Until the attempts that it ended had ended, with no process left; None if it ended none."""
    held_s: float = 0.0
    """How long it lasted; `recovered_s` does not include it."""
    wrong: list[str] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    """What was waited for after the repair, with its seconds: faults of one moment share it."""
    seed: int = 0
    database: str = ""


def append(path: Path, row: Row) -> None:
    """Add a fault to a file of campaigns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read(path: Path) -> list[Row]:
    """Return the faults of all campaigns; one that was repeated counts once, with its last outcome."""
    rows = (Row(**json.loads(line)) for line in path.read_text().splitlines())
    return list({(row.database, row.seed, row.number, row.kind): row for row in rows}.values())


def table(rows: Iterable[Row]) -> str:
    """Return the outcome by kind as a Markdown table."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    lines = [
        f"| fault | count | wrong | over {RECOVERY_S:.0f} s | recovery median / worst (s)"
        " | ended everywhere median / worst (s) |",
        "|---|---|---|---|---|---|",
    ]
    for kind, same in sorted(by_kind.items()):
        wrong = sum(bool(row.wrong) for row in same)
        late = sum(row.recovered_s > RECOVERY_S for row in same)
        ends = [row.ended_s for row in same if row.ended_s is not None]
        recovered = _spread([row.recovered_s for row in same])
        lines.append(f"| {kind} | {len(same)} | {wrong} | {late} | {recovered} | {_spread(ends)} |")
    return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "-"
