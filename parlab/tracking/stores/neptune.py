"""Exports of Neptune: `neptune-exporter export` writes `PROJECT/RUN_part_N.parquet`, and the files of runs beside them.

A row is one value of one attribute of one run; `attribute_type` names its kind, and so its column. The columns are
those of the exporter's README of 2025 (Neptune 2 and 3). Steps are decimals there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .foreign import ForeignRun, Store, identity_of, milliseconds, point, text_of

TRACKER = "neptune"
MARK = b"PAR1"
_PART = re.compile(r"(?P<run>(?:.*/)?[^/]+)_part_(?P<number>\d{1,6})\.parquet")
_COLUMNS = {"project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp", "float_value"}
_SCALARS = {
    "float": "float_value",
    "int": "int_value",
    "string": "string_value",
    "bool": "bool_value",
    "datetime": "datetime_value",
    "string_set": "string_set_value",
}
"""Kind of an attribute with one value -> its column."""
_SERIES = "float_series"
_FILES = ("file", "file_series")
_OWN = "sys/"
"""Beginning of the attributes that Neptune keeps of a run: its name, times, owner and state."""


class _Series(NamedTuple):
    """What the series of a run need before their points are read."""

    last_ms: int | None
    between: frozenset[str]
    """Those with a step between whole numbers."""


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store for all exported runs. Raises Refused for a damaged file, and where polars is missing."""
    parts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, path in files.items():
        if (match := _PART.fullmatch(name)) is not None and _is_parquet(path):
            parts[match["run"]].append((int(match["number"]), name))
    if not parts:
        return
    ends = _by_end(files)
    runs: list[ForeignRun] = []
    owned: set[str] = set()
    notes: list[str] = []
    for run in sorted(parts):
        names = [name for _, name in sorted(parts[run])]
        paths = [files[name] for name in names]
        if all(_columns(path) >= _COLUMNS for path in paths):
            artifacts = _artifacts(paths, ends)
            foreign = _run(paths, notes)
            runs.append(foreign._replace(artifacts={place: files[name] for place, name in artifacts.items()}))
            owned |= {*names, *artifacts.values()}
    if runs:
        yield Store("Neptune export", TRACKER, runs, frozenset(owned), notes)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK


def _by_end(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the name of a file by each end of it: paths of an export begin at a directory that a user chose."""
    ends: dict[str, str] = {}
    for name in files:
        pieces = name.split("/")
        for at in range(len(pieces)):
            ends.setdefault("/".join(pieces[at:]), name)
    return ends


def _polars() -> Any:
    try:
        import polars  # optional, 40 MB
    except ImportError:
        raise Refused("exports of Neptune are Parquet files, which need polars: pip install polars") from None
    return polars


def _columns(path: Path) -> set[str]:
    polars = _polars()
    try:
        return set(polars.read_parquet_schema(path))
    except (polars.exceptions.PolarsError, OSError) as problem:
        raise Refused(f"{path.name} is a damaged Parquet file ({problem}); export it again") from problem


def _rows(paths: Sequence[Path], kinds: Sequence[str], *columns: Any) -> Any:
    """Return columns of the attributes of some kinds, in the order of the files."""
    polars = _polars()
    kind = polars.col("attribute_type").cast(polars.String)
    frames = [polars.scan_parquet(path, glob=False).filter(kind.is_in(list(kinds))).select(columns) for path in paths]
    try:
        return polars.concat(frame.collect() for frame in frames)
    except (polars.exceptions.PolarsError, OSError) as problem:
        raise Refused(f"{paths[0].name} cannot be read ({problem}); export it again") from problem


def _run(paths: Sequence[Path], notes: list[str]) -> ForeignRun:
    """Describe a run without its files; `notes` gets what cannot be kept as it is."""
    project, run_id = _named(paths[0])
    settings = _settings(paths)
    own = {key.removeprefix(_OWN): value for key, value in settings.items() if key.startswith(_OWN)}
    series, left_out = _series(paths), _left_out(paths)
    name = str(own.get("name") or run_id)
    if series.between:
        notes.append(f"{name}: steps of {len(series.between)} metrics lie between whole numbers; they are counted")
    if left_out:
        notes.append(f"{name}: {left_out} series of texts and histograms are left out")
    return ForeignRun(
        identity=identity_of(TRACKER, project, run_id),
        experiment=project.rpartition("/")[2] or "Neptune",
        name=name,
        user_name=str(own.get("owner") or ""),
        status="FAILED" if own.get("failed") else "FINISHED",
        start_ms=_time_ms(own.get("creation_time")),
        end_ms=series.last_ms or _time_ms(own.get("modification_time")),
        parameters={key: _text(value) for key, value in settings.items() if not key.startswith(_OWN)},
        tags={"neptune.run_id": run_id, **{f"neptune.{key}": _text(value) for key, value in own.items()}},
        points=partial(_points, paths, series.between),
        artifacts={},
    )


def _named(path: Path) -> tuple[str, str]:
    """Return project and run of a file, which are the same in all of its rows."""
    polars = _polars()
    first = polars.scan_parquet(path, glob=False).select("project_id", "run_id").head(1).collect().rows()
    project, run_id = first[0] if first else ("", "")
    return str(project or ""), str(run_id or path.name)


def _settings(paths: Sequence[Path]) -> dict[str, Any]:
    present = set.intersection(*map(_columns, paths))
    settings: dict[str, Any] = {}
    for kind, column in _SCALARS.items():
        if column in present:
            rows = _rows(paths, [kind], "attribute_path", column).iter_rows()
            settings |= {str(path): value for path, value in rows if value is not None}
    return settings


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return ", ".join(sorted(map(str, value))) if isinstance(value, list) else text_of(value)


def _time_ms(value: Any) -> int | None:
    return milliseconds(value.timestamp() * 1_000) if isinstance(value, datetime) else None


def _series(paths: Sequence[Path]) -> _Series:
    polars = _polars()
    step = polars.col("step").cast(polars.Float64)
    between = (step != step.floor()).alias("between")
    rows = _rows(paths, [_SERIES], "attribute_path", between, polars.col("timestamp").dt.timestamp("ms"))
    names = rows.filter(polars.col("between"))["attribute_path"].unique().to_list()
    return _Series(milliseconds(rows["timestamp"].max()), frozenset(map(str, names)))


def _left_out(paths: Sequence[Path]) -> int:
    return int(_rows(paths, ("string_series", "histogram_series"), "attribute_path")["attribute_path"].n_unique())


def _points(paths: Sequence[Path], between: frozenset[str]) -> Iterator[Point]:
    """Yield the points of all series; those with steps between whole numbers count their points from 0."""
    polars = _polars()
    columns = (polars.col("step").cast(polars.Float64), polars.col("timestamp").dt.timestamp("ms"), "float_value")
    counts: Counter[str] = Counter()
    for path in paths:
        for key, step, time_ms, value in _rows([path], [_SERIES], "attribute_path", *columns).iter_rows():
            number = counts[key] if key in between or step is None else int(step)
            counts[key] += 1
            if (logged := point(str(key), value, float(time_ms or 0), number)) is not None:
                yield logged


def _artifacts(paths: Sequence[Path], ends: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the exported files of a run by attribute; of a series, the step is part of the path."""
    polars = _polars()
    if any("file_value" not in _columns(path) for path in paths):
        return {}
    place = polars.col("file_value").struct.field("path")
    step = polars.col("step").cast(polars.Float64)
    artifacts: dict[str, str] = {}
    for key, at, path in _rows(paths, _FILES, "attribute_path", step, place).iter_rows():
        if path and (name := ends.get(str(path))) is not None:
            ending = Path(name).suffix
            shown = str(key).removesuffix(ending) if at is None else f"{key}/{at:g}"
            artifacts[f"{shown}{ending}"] = name
    return artifacts
