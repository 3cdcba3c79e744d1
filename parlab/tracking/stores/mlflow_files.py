"""MLflow's file store: `mlruns/EXPERIMENT/RUN/` with meta.yaml, metrics/, params/, tags/ and artifacts/."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .foreign import MAX_KEY, MAX_TEXT, ForeignRun, Store, milliseconds, number_of, point

TRACKER = "mlflow"
_META = re.compile(r"^(?P<root>(?:.*/)?)(?P<experiment>\d{1,20})/(?P<run>[0-9a-f]{32})/meta\.yaml$")
_MAX_META = 64 * 1024
_MAX_LINE = 1_000
# MLflow writes the state of a run as the number of its protocol's enumeration.
_STATES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store per root directory. Raises Refused for a damaged meta.yaml."""
    matches = [match for match in map(_META.match, files) if match is not None]
    if not matches:
        return
    prefixes = {match[0].removesuffix("meta.yaml"): match for match in matches}
    parts = _parts(files, prefixes)
    roots: dict[str, list[ForeignRun]] = defaultdict(list)
    for prefix, match in sorted(prefixes.items()):
        run = _run(match, parts[prefix], files)
        if run is not None:
            roots[match["root"]].append(run)
    for root, runs in roots.items():
        owned = _owned(files, root, {root + match["experiment"] for match in matches if match["root"] == root})
        yield Store(root.rstrip("/").rpartition("/")[2] or "mlruns", TRACKER, runs, owned)


def _parts(files: Mapping[str, Path], prefixes: Mapping[str, object]) -> dict[str, dict[str, Path]]:
    """Sort files by the directory of their run: {directory: {name within it: file}}."""
    parts: dict[str, dict[str, Path]] = defaultdict(dict)
    lengths = sorted({len(prefix) for prefix in prefixes})
    for name, path in files.items():
        prefix = next((name[:length] for length in lengths if name[:length] in prefixes), None)
        if prefix is not None:
            parts[prefix][name.removeprefix(prefix)] = path
    return parts


def _owned(files: Mapping[str, Path], root: str, experiments: set[str]) -> frozenset[str]:
    """Return the files that belong to a store: those of its experiments, and the descriptions of empty ones."""
    description = re.compile(re.escape(root) + r"\d{1,20}/meta\.yaml")
    directories = tuple(f"{directory}/" for directory in experiments)
    return frozenset(name for name in files if name.startswith(directories) or description.fullmatch(name))


def _run(match: re.Match[str], parts: Mapping[str, Path], files: Mapping[str, Path]) -> ForeignRun | None:
    meta = _meta(parts["meta.yaml"], match[0])
    if meta.get("lifecycle_stage") == "deleted":
        return None
    above = f"{match['root']}{match['experiment']}/meta.yaml"
    experiment = _meta(files[above], above) if above in files else {}
    tags = {name[5:]: _file_text(path) for name, path in parts.items() if name.startswith("tags/")}
    state = meta.get("status")
    return ForeignRun(
        identity=match["run"],
        experiment=str(experiment.get("name") or f"MLflow experiment {match['experiment']}"),
        name=str(meta.get("run_name") or tags.get("mlflow.runName", "")),
        user_name=str(meta.get("user_id") or ""),
        status=_STATES.get(state, "FINISHED") if isinstance(state, int) else "FINISHED",
        start_ms=milliseconds(meta.get("start_time")),
        end_ms=milliseconds(meta.get("end_time")),
        parameters={name[7:]: _file_text(path) for name, path in parts.items() if name.startswith("params/")},
        tags=tags,
        points=partial(_points, {name[8:]: path for name, path in parts.items() if name.startswith("metrics/")}),
        artifacts={name[10:]: path for name, path in parts.items() if name.startswith("artifacts/")},
    )


def _meta(path: Path, name: str) -> dict[str, Any]:
    if path.stat().st_size > _MAX_META:
        raise Refused(f"{name} is larger than {_MAX_META >> 10} KiB; it is not the description of an MLflow run")
    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        raise Refused(f"{name} is damaged; restore it, or delete the folder of its run and import again") from problem
    return meta if isinstance(meta, dict) else {}


def _file_text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MAX_TEXT)


def _points(metrics: Mapping[str, Path]) -> Iterator[Point]:
    """Read `TIME VALUE STEP` per line; a line that is cut off is left for the next import."""
    for key, path in sorted(metrics.items()):
        if len(key) > MAX_KEY:
            continue
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE):
                if not line.endswith(b"\n"):
                    break
                if (logged := _point(key, line.decode("ascii", "replace").split())) is not None:
                    yield logged


def _point(key: str, columns: list[str]) -> Point | None:
    if not 2 <= len(columns) <= 4:
        return None
    try:
        value, time_ms, step = float(columns[1]), int(columns[0]), int(columns[2]) if len(columns) > 2 else 0
    except ValueError:
        return None
    return point(key, number_of(value), time_ms, step)
