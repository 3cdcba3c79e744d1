"""What a run has logged that is not a number: the newest value of each name, as a page shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Max

from parlab.charts.histogram import histogram
from parlab.charts.svg import Svg
from parlab.lab.models import Artifact, LoggedValue, TrackedRun
from parlab.tracking.artifacts import object_read

MAX_KEYS = 24
MAX_PICTURES = 4
MAX_ROWS, MAX_CELL = 100, 200
MAX_TABLE_BYTES = 8 << 20
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
"""Files that a page shows as pictures; none of them can hold a script."""
TABLE = ".table.json"


class ShownValue(NamedTuple):
    """A value of a name, at the last step at which it was logged."""

    key: str
    step: int
    kind: str
    text: str = ""
    figure: Svg | None = None
    pictures: Sequence[str] = ()
    """Paths among the artifacts of the run."""
    file: str = ""


class Table(NamedTuple):
    """The beginning of a table that a script logged."""

    columns: list[str]
    rows: list[list[str]]
    total: int


def shown_values(tracked: TrackedRun) -> list[ShownValue]:
    """Return the newest value of each name, by name."""
    newest = tracked.values.order_by("key").values("key").annotate(last=Max("pk")).values("last")[:MAX_KEYS]
    rows = LoggedValue.objects.filter(pk__in=[row["last"] for row in newest]).order_by("key")
    return [_shown(row) for row in rows]


def _shown(row: LoggedValue) -> ShownValue:
    value = row.value
    if not isinstance(value, dict):
        return ShownValue(row.key, row.step, "text", text=_cell(value, 500))
    kind, path = str(value.get("_type", "object")), value.get("path")
    if kind == "histogram":
        return ShownValue(row.key, row.step, kind, figure=_histogram(row.key, value))
    names = value.get("filenames") if kind == "images/separated" else [path] if kind == "image-file" else None
    if isinstance(names, list):
        pictures = [str(name) for name in names if str(name).lower().endswith(PICTURES)][:MAX_PICTURES]
        return ShownValue(row.key, row.step, "picture", text=_cell(value.get("caption") or "", 200), pictures=pictures)
    if isinstance(path, str):
        return ShownValue(row.key, row.step, kind.removesuffix("-file"), file=path)
    return ShownValue(row.key, row.step, kind, text=_cell(value, 500))


def _histogram(key: str, value: dict[str, Any]) -> Svg | None:
    counts, edges = value.get("values"), value.get("bins")
    packed = value.get("packedBins")
    if isinstance(packed, dict) and isinstance(counts, list):
        edges = [float(packed["min"]) + float(packed["size"]) * place for place in range(len(counts) + 1)]
    numbers = [*(counts or []), *(edges or [])] if isinstance(counts, list) and isinstance(edges, list) else [None]
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    return histogram([float(edge) for edge in edges or []], [float(count) for count in counts or []], key)


def table_of(artifact: Artifact) -> Table | None:
    """Read the beginning of a table; None for a file that is none, or is too large to be read for a page."""
    if not artifact.path.endswith(TABLE) or artifact.size > MAX_TABLE_BYTES:
        return None
    try:
        data = json.loads(object_read(artifact.sha256))
        columns, rows = data["columns"], data["data"]
        shown = [[_cell(value, MAX_CELL) for value in row] for row in rows[:MAX_ROWS]]
        return Table([_cell(name, MAX_CELL) for name in columns], shown, len(rows))
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return None


def _cell(value: Any, length: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= length else f"{text[: length - 1]}…"
