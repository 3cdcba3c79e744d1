"""The faults of campaigns as lines of JSON, which add up over campaigns, and their table."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

END = "end"
"""The kind of the row in which a stage ends: all runs are cancelled, and nothing may be left."""
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
    commit: str = ""
    faults: int = 0
    """At the end of a stage: its faults, which this end has checked."""
    printed: int = 0
    """At the end of a stage: events that its runs and its script printed."""
    stored: int = 0


def append(path: Path, row: Row) -> None:
    """Add a fault to a file of campaigns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read_all(path: Path) -> list[Row]:
    """Return all lines of a file of campaigns; none if it does not exist."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def read(path: Path) -> list[Row]:
    """Return the faults of all campaigns; one that was repeated counts once, with its last outcome."""
    return list({(row.database, row.seed, row.number, row.kind): row for row in read_all(path)}.values())


def next_number(rows: Iterable[Row], seed: int, database: str) -> int:
    """Return the number of the first fault of a seed that has no outcome yet."""
    mine = (row.number for row in rows if (row.seed, row.database) == (seed, database) and row.kind != END)
    return max(mine, default=0) + 1


def total(rows: Iterable[Row]) -> str:
    """Say what all faults together have left."""
    rows = list(rows)
    faults, ends = [row for row in rows if row.kind != END], [row for row in rows if row.kind == END]
    wrong, late = sum(bool(row.wrong) for row in rows), sum(row.recovered_s > RECOVERY_S for row in faults)
    printed, stored, checked = (sum(getattr(row, name) for row in ends) for name in ("printed", "stored", "faults"))
    return (
        f"{len(faults):,} faults, {wrong} wrong, {late} over {RECOVERY_S:.0f} s; {stored:,} of {printed:,} events"
        f" stored, each once; the ends of the stages of {checked:,} faults were checked"
    )


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
