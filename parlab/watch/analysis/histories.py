"""Histories of results from CSV, apache-otava's JSON and Perfherder's JSON -> rows; pure.

Otava's JSON is what its JSON importer reads: `[{"timestamp", "metrics": [{"name", "value"}], "attributes"}]`.
Perfherder's is an answer of its API, `performance/summary` (a list of series with `data`) or `performance/data`
(signature -> points).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

MAX_ROWS = 50_000
_TIMES = ("time", "timestamp", "date", "at", "push_timestamp")
_COMMITS = ("commit", "revision", "sha", "git_commit")
_NODES = ("node", "host", "hostname", "machine")
_SERIES = ("series", "point", "configuration")


@dataclass
class Row:
    """One result of a history."""

    line: str
    """Identity within the history, the same when the file is imported again."""
    at: datetime
    values: dict[str, float] = field(default_factory=dict)
    commit: str = ""
    node: str = ""
    series: str = ""
    environment: dict[str, str] = field(default_factory=dict)


class History:
    """Rows of a history, and what could not be read."""

    def __init__(self, rows: Sequence[Row], problems: Sequence[str]) -> None:
        self.rows, self.problems = list(rows), list(problems)


def read_history(text: str) -> History:
    """Read a history in any of the three formats; raise ValueError if it is none of them."""
    problems: list[str] = []
    stripped = text.lstrip("\ufeff \t\r\n")
    if stripped[:1] in ("[", "{"):
        try:
            content = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the file is no complete JSON ({error}); export it again") from error
        rows = list(_json_rows(content, problems))
    else:
        rows = list(_csv_rows(stripped, problems))
    if not rows:
        why = f": {problems[0]}" if problems else ""
        raise ValueError(
            f"the file has no results{why}; use CSV with a column time and a column per measure, or the JSON of otava"
            " or Perfherder"
        )
    if len(rows) > MAX_ROWS:
        raise ValueError(f"the file has {len(rows)} results; split it into files of {MAX_ROWS}")
    return History(_numbered(rows), problems)


def _numbered(rows: Sequence[Row]) -> list[Row]:
    """Tell repeats at the same time and commit apart by their order, which is the same in every import."""
    counts = Counter[str]()
    for row in rows:
        counts[row.line] += 1
        if counts[row.line] > 1:
            row.line = f"{row.line}#{counts[row.line]}"
    return list(rows)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _csv_rows(text: str, problems: list[str]) -> Iterator[Row]:
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
        names = [name.strip() for name in reader.fieldnames or []]
        lowered = {name.lower(): name for name in reversed(names)}
        time, commit, node, series = (_column(lowered, options) for options in (_TIMES, _COMMITS, _NODES, _SERIES))
        if not time:
            problems.append(f"no column is named {', '.join(_TIMES[:4])}; the first line is {first[:80]!r}")
            return
        for number, cells in enumerate(reader, start=2):
            clean = {str(name).strip(): str(cell or "").strip() for name, cell in cells.items() if name is not None}
            at = _time(clean.get(time, ""))
            if at is None:
                problems.append(f"line {number}: {clean.get(time, '')[:40]!r} is no time")
                continue
            row = Row(f"csv:{at.timestamp():.3f}:{clean.get(commit, '')[:40]}:{clean.get(series, '')[:60]}", at)
            row.commit, row.node, row.series = (clean.get(name, "") if name else "" for name in (commit, node, series))
            for name, cell in clean.items():
                if name not in (time, commit, node, series):
                    _add_cell(row, name, cell)
            yield row
    except csv.Error as error:
        problems.append(f"the CSV cannot be read: {error}")


def _column(lowered: Mapping[str, str], options: Iterable[str]) -> str:
    return next((lowered[option] for option in options if option in lowered), "")


def _add_cell(row: Row, name: str, cell: str) -> None:
    """Add a cell as a measure if it is a number, as a part of the environment if it is a text."""
    number = _finite_value(cell)
    if number is not None:
        row.values[name] = number
    elif cell:
        row.environment[name] = cell[:200]


# --- JSON ------------------------------------------------------------------------------------------------------------


def _json_rows(content: Any, problems: list[str]) -> Iterator[Row]:
    if isinstance(content, list) and any(isinstance(item, Mapping) and "metrics" in item for item in content):
        yield from _otava_rows(content, problems)
    elif isinstance(content, list):
        yield from _perfherder_rows([item for item in content if isinstance(item, Mapping)], problems)
    elif isinstance(content, Mapping):
        lists = [{"name": name, "data": points} for name, points in content.items() if isinstance(points, list)]
        yield from _perfherder_rows(lists, problems)


def _otava_rows(content: Sequence[Any], problems: list[str]) -> Iterator[Row]:
    for number, item in enumerate(content):
        at = _time(item.get("timestamp")) if isinstance(item, Mapping) else None
        if at is None:
            problems.append(f"result {number}: it has no timestamp")
            continue
        attributes = item.get("attributes")
        texts = (
            {str(key): str(value)[:200] for key, value in attributes.items()} if isinstance(attributes, Mapping) else {}
        )
        commit = next((texts[name] for name in _COMMITS if name in texts), "")
        node = next((texts[name] for name in _NODES if name in texts), "")
        row = Row(f"otava:{at.timestamp():.3f}:{commit[:40]}", at, commit=commit, node=node, environment=texts)
        metrics = item.get("metrics")
        for metric in metrics if isinstance(metrics, list) else []:
            value = _finite_value(metric.get("value")) if isinstance(metric, Mapping) else None
            if value is not None:
                row.values[str(metric.get("name"))[:200]] = value
        yield row


def _perfherder_rows(content: Sequence[Mapping[str, Any]], problems: list[str]) -> Iterator[Row]:
    rows: dict[str, Row] = {}
    for series in content:
        name = str(series.get("name") or series.get("suite") or series.get("signature_id") or "value")[:150]
        platform = str(series.get("platform") or "")
        points = series.get("data")
        for point in points if isinstance(points, list) else []:
            at = _time(point.get("push_timestamp")) if isinstance(point, Mapping) else None
            value = _finite_value(point.get("value")) if isinstance(point, Mapping) else None
            if at is None or value is None:
                problems.append(f"{name}: a point has no push_timestamp or value")
                continue
            identity = f"perfherder:{point.get('id', '')}:{point.get('job_id', '')}:{at.timestamp():.0f}:{platform}"[
                :180
            ]
            row = rows.setdefault(identity, Row(identity, at, commit=str(point.get("revision") or "")[:64]))
            row.series = platform[:300]
            row.values[name] = value
    yield from rows.values()


def _finite_value(content: Any) -> float | None:
    if isinstance(content, bool) or content is None:
        return None
    try:
        value = float(content)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _time(content: Any) -> datetime | None:
    """Return a time from Unix seconds or milliseconds, or ISO 8601; UTC where none is stated."""
    number = _finite_value(content)
    try:
        if number is not None:
            moment = datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC)
        else:
            moment = datetime.fromisoformat(str(content).strip().replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment if moment.year > 1 else None
