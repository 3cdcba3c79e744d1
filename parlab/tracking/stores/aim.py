"""Repositories of Aim: `.aim/` with a RocksDB directory of metadata and one of series per run, and a SQLite database.

`meta/chunks/RUN` holds settings, contexts and the list of sequences, `seqs/chunks/RUN` their points, and
`run_metadata.sqlite` names, experiments and tags. A key is a path: its parts, each followed by 0xFE; a part that is a
number begins with 0xFE and has 8 bytes. The first byte of a value is its type. As aim 3.29 writes them; the directories
are opened for reading by the RocksDB that comes with Aim.
"""

from __future__ import annotations

import re
import sqlite3
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .databases import opened, tables_of
from .foreign import ForeignRun, Store, flattened, identity_of, milliseconds, number_of, point, text_of

TRACKER = "aim"
SYSTEM = "__system__"
"""Beginning of the names of what Aim samples of the machine."""
_IN_RUN = re.compile(r"(?P<root>(?:.*/)?)(?P<part>meta|seqs)/chunks/(?P<run>[^/]+)/(?P<file>[^/]+)")
_OWN = ("meta/", "seqs/", "check_ins/", "locks/", "run_metadata.sqlite", "VERSION")
_SENTINEL = 0xFE
_NUMBERS = ("float", "int", "number")
_TABLES = {"run", "experiment", "tag", "run_tag"}
_MAX_SETTINGS = 100_000

Parts = tuple[str | int, ...]


class _Row(NamedTuple):
    """What the SQLite database says about a run."""

    name: str = ""
    description: str = ""
    experiment: str = ""
    created_ms: int | None = None
    is_archived: bool = False
    tags: Sequence[str] = ()


class _Sequence(NamedTuple):
    """A sequence of numbers: the index of its context, its name there, and its name in parlab."""

    context: int
    name: str
    key: str


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store per repository."""
    repositories: dict[str, dict[str, dict[str, dict[str, Path]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for name, path in files.items():
        if (match := _IN_RUN.fullmatch(name)) is not None:
            repositories[match["root"]][match["run"]][match["part"]][match["file"]] = path
    for root, databases in sorted(repositories.items()):
        runs = {run: parts for run, parts in sorted(databases.items()) if "CURRENT" in parts["meta"]}
        if not runs:
            continue
        rows = _rows(root, files)
        notes: list[str] = []
        foreign = [_run(run, parts, rows.get(run, _Row()), notes) for run, parts in runs.items()]
        foreign.sort(key=lambda run: run.start_ms or 0)
        owned = frozenset(name for name in files if name.startswith(tuple(root + own for own in _OWN)))
        label = root.removesuffix(".aim/").rstrip("/").rpartition("/")[2]
        yield Store(f"{label or 'Aim'} repository", TRACKER, foreign, owned, notes)


def _rows(root: str, files: Mapping[str, Path]) -> dict[str, _Row]:
    name = f"{root}run_metadata.sqlite"
    if name not in files:
        return {}
    companions = {"-wal": files[f"{name}-wal"]} if f"{name}-wal" in files else {}
    query = (
        "SELECT r.id, r.hash, r.name, r.description, e.name, r.created_at, r.is_archived FROM run r"
        " LEFT JOIN experiment e ON e.id = r.experiment_id"
    )
    try:
        with opened(files[name], companions) as database:
            if not set(tables_of(database)) >= _TABLES:
                return {}
            tags: dict[int, list[str]] = defaultdict(list)
            for run, tag in database.execute("SELECT run_id, name FROM run_tag JOIN tag ON tag.id = tag_id"):
                tags[run].append(str(tag))
            return {
                str(run): _Row(
                    "" if label == f"Run: {run}" else str(label or ""),
                    str(description or ""),
                    str(experiment or ""),
                    _utc_ms(created),
                    bool(is_archived),
                    tags[number],
                )
                for number, run, label, description, experiment, created, is_archived in database.execute(query)
            }
    except sqlite3.DatabaseError as problem:
        raise Refused(f"run_metadata.sqlite is damaged ({problem}); copy the whole directory again") from problem


def _utc_ms(text: Any) -> int | None:
    try:
        return milliseconds(datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _run(run: str, parts: Mapping[str, Mapping[str, Path]], row: _Row, notes: list[str]) -> ForeignRun:
    prefix = ("meta", "chunks", run)
    attributes: list[tuple[Parts, Any]] = []
    contexts: dict[int, list[tuple[Parts, Any]]] = defaultdict(list)
    kinds: dict[tuple[int, str], str] = {}
    end: Any = None
    for path, value in _values(parts["meta"], prefix):
        match path[3:]:
            case ("attrs", *inner) if inner and len(attributes) < _MAX_SETTINGS:
                attributes.append((tuple(inner), value))
            case ("contexts", int(context), *inner):
                contexts[context].append((tuple(inner), value))
            case ("traces", int(context), str(name), "dtype") if isinstance(value, str):
                kinds[context, name] = value
            case ("end_time",):
                end = number_of(value)
    settings = _tree(attributes)
    # Aim's own: command and commit are tags; environment variables, which hold secrets, and packages are left out.
    system = settings.pop("__system_params", {})
    sequences = _named([key for key, kind in kinds.items() if kind in _NUMBERS], contexts)
    others = sorted({name for (_, name), kind in kinds.items() if kind not in _NUMBERS})
    label = row.name or run[:8]
    if others:
        notes.append(f"{label}: left out what is no number: {', '.join(others)[:200]}")
    return ForeignRun(
        identity=identity_of(TRACKER, run),
        experiment=row.experiment or "Aim",
        name=row.name,
        user_name="",
        status="FINISHED" if end is not None else "RUNNING",
        start_ms=row.created_ms,
        end_ms=milliseconds(end * 1000) if end is not None else None,
        parameters=flattened(_without_group(settings)),
        tags=_tags(run, row, system if isinstance(system, dict) else {}),
        points=partial(_points, run, parts.get("seqs", {}), sequences),
        artifacts={},
    )


def _tags(run: str, row: _Row, system: Mapping[str, Any]) -> dict[str, str]:
    git = system.get("git_info")
    commit = git.get("commit") if isinstance(git, dict) else None
    arguments = system.get("arguments")
    tags = {
        "aim.run_hash": run,
        "aim.tags": ", ".join(row.tags),
        "aim.description": row.description,
        "aim.archived": "true" if row.is_archived else "",
        "aim.command": " ".join(map(text_of, arguments)) if isinstance(arguments, list) else "",
        "aim.commit": text_of(commit.get("hash")) if isinstance(commit, dict) else "",
    }
    return {key: value for key, value in tags.items() if value}


def _without_group(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the name of the group that Aim's documentation uses for settings, `run["hparams"] = {...}`."""
    group = settings.get("hparams")
    if not isinstance(group, dict) or set(group) & set(settings):
        return dict(settings)
    return {**group, **{key: value for key, value in settings.items() if key != "hparams"}}


# --- sequences -------------------------------------------------------------------------------------------------------


def _named(keys: Sequence[tuple[int, str]], contexts: Mapping[int, list[tuple[Parts, Any]]]) -> list[_Sequence]:
    """Name sequences after their context: `acc` of {"subset": "val", "rank": 1} is `val/acc{rank=1}`."""
    sequences: list[_Sequence] = []
    taken: set[str] = set()
    for context, name in sorted(keys, key=lambda key: (key[1], key[0])):
        labels = _tree(contexts.get(context, ()))
        subset = labels.pop("subset", None)
        key = f"system/{name.removeprefix(SYSTEM)}" if name.startswith(SYSTEM) else name
        if isinstance(subset, str) and subset and not key.startswith((f"{subset}/", f"{subset}_")):
            key = f"{subset}/{key}"
        if labels:
            key += "{" + ",".join(f"{label}={text_of(value)}" for label, value in sorted(labels.items())) + "}"
        while key in taken:
            key += f"{{context={context & (1 << 64) - 1:x}}}"
        taken.add(key)
        sequences.append(_Sequence(context, name, key))
    return sequences


def _points(run: str, files: Mapping[str, Path], sequences: Sequence[_Sequence]) -> Iterator[Point]:
    """Yield the points of each sequence in the order of time, under the steps that the script gave."""
    if "CURRENT" not in files:
        return
    keys = {(sequence.context, sequence.name): sequence.key for sequence in sequences}
    # ("seqs", "v2", "chunks", run) is sorted by a hash of the step, which is a column; ("seqs", "chunks", run) by step.
    for version in (("seqs", "chunks", run), ("seqs", "v2", "chunks", run)):
        depth = len(version)
        for series, values in groupby(_values(files, version), key=lambda item: item[0][depth : depth + 2]):
            key = keys.get(series)
            if key is not None:
                yield from _series_points(key, ((path[depth + 2 :], value) for path, value in values))


def _series_points(key: str, values: Iterator[tuple[Parts, Any]]) -> Iterator[Point]:
    columns: dict[str, dict[str | int, Any]] = defaultdict(dict)
    for path, value in values:
        match path:
            case (("step" | "time" | "val") as column, int(row)):
                columns[column][row] = value
    steps, times = columns["step"], columns["time"]
    rows = [(number_of(times.get(row)) or 0.0, steps.get(row, row), value) for row, value in columns["val"].items()]
    for time, step, value in sorted(rows, key=lambda item: (item[0], str(item[1]))):
        logged = point(key, value, time * 1000, step)
        if logged is not None:
            yield logged


# --- encoding --------------------------------------------------------------------------------------------------------


def _values(files: Mapping[str, Path], prefix: Parts) -> Iterator[tuple[Parts, Any]]:
    """Yield the paths below a prefix with their values."""
    start = b"".join(str(part).encode() + bytes([_SENTINEL]) for part in prefix)
    for key, content in _entries(files, start):
        yield _path(key), _value(content)


def _entries(files: Mapping[str, Path], start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys that begin with `start`, in their order, and their values. Raises Refused."""
    try:
        import aimrocks
    except ImportError as missing:
        raise Refused(
            "repositories of Aim are read with its own database, which is not installed here; install parlab[aim]"
        ) from missing
    with tempfile.TemporaryDirectory(prefix="parlab-aim-") as directory:
        for name, path in files.items():
            (Path(directory) / name).symlink_to(path.resolve())
        try:
            rows = aimrocks.DB(directory, aimrocks.Options(create_if_missing=False), read_only=True).iteritems()
            rows.seek(start)
            for key, content in rows:
                if not key.startswith(start):
                    return
                yield key, content
        except Exception as problem:  # its errors have no base class of their own
            if type(problem).__module__ != "aimrocks.errors":
                raise
            reason = b" ".join(problem.args).decode("utf-8", "replace").replace(f"{directory}/", "")
            raise Refused(f"a database of Aim is damaged ({reason}); copy the whole directory again") from problem


def _path(key: bytes) -> Parts:
    parts: list[str | int] = []
    at = 0
    while at < len(key):
        if key[at] == _SENTINEL:
            parts.append(int.from_bytes(key[at + 1 : at + 9], "big", signed=True))
            at += 10
        else:
            end = key.find(_SENTINEL, at)
            end = end if end >= 0 else len(key)
            parts.append(key[at:end].decode("utf-8", "replace"))
            at = end + 1
    return tuple(parts)


def _value(content: bytes) -> Any:
    """Decode a value; an empty list or mapping where its items follow, None for anything that is not plain."""
    kind, data = content[:1], content[1:]
    match kind:
        case b"\x01":
            return data == b"\x01"
        case b"\x02":
            return int.from_bytes(data, "little", signed=True)
        case b"\x03" if len(data) == 8:
            return struct.unpack("<d", data)[0]
        case b"\x04":
            return data.decode("utf-8", "replace")
        case b"\x06":
            return []
        case b"\x07":
            return {}
    return None


def _tree(values: Sequence[tuple[Parts, Any]]) -> dict[str, Any]:
    """Join paths with their values to nested mappings and lists."""
    root: dict[str, Any] = {}
    for path, value in values:
        node: Any = root
        for part in path[:-1]:
            node = _child(node, part, {})
        if path:
            _child(node, path[-1], value)
    return root


def _child(node: Any, part: str | int, value: Any) -> Any:
    """Return an item of a mapping or list, which is set where it is missing."""
    if isinstance(node, list):
        if part == len(node):
            node.append(value)
        return node[part] if isinstance(part, int) and 0 <= part < len(node) else {}
    if isinstance(node, dict):
        return node.setdefault(str(part), value)
    return {}
