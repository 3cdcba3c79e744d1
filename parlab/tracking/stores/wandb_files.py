"""Offline directories of Weights & Biases: `offline-run-TIME-ID/run-ID.wandb` and the folder `files` beside it.

A .wandb file has a header of 7 bytes, then blocks of 32 KiB with records as in LevelDB's log: CRC-32 of type and
content (4 bytes, little endian), length (2), type (1: whole, 2: first, 3: middle, 4: last part). A record is a protobuf
message; the numbers of its fields are those of wandb_internal.proto of wandb 0.31. A file may end within a record, or
hold a damaged one: what comes before is read, and a note states how much is missing.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from parlab.formats.exports.protobuf import Damaged, fields_of
from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .foreign import ForeignRun, Store, flattened, identity_of, milliseconds, number_of, point, row_points

MARK = b":W&B"
TRACKER = "wandb"
_HEADER, _BLOCK, _FRAME = 7, 32_768, 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_RECORD = 64 << 20
_HISTORY, _CONFIG, _STATS, _RUN, _EXIT = 2, 5, 7, 17, 18
SYSTEM = "system/"
"""Beginning of the names of what W&B samples of the machine; such a sample belongs to the last logged step."""

Fields = Mapping[int, Sequence[Any]]


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store for all .wandb files; files of one run ID (a resumed run) are one run."""
    logs = {name: path for name, path in sorted(files.items()) if name.endswith(".wandb") and _is_log(path)}
    if not logs:
        return
    described = [(name, path, _Description(path)) for name, path in logs.items()]
    by_run: dict[tuple[str, str], list[tuple[str, Path, _Description]]] = defaultdict(list)
    for name, path, description in described:
        by_run[description.project, description.run_id or Path(name).stem].append((name, path, description))
    runs = [_run(project, run_id, parts, files) for (project, run_id), parts in by_run.items()]
    notes = [
        f"{name}: the last {description.missing:,} bytes are incomplete or damaged; what comes before was read"
        for name, _, description in described
        if description.missing
    ]
    owned = frozenset(name for log in logs for name in files if name.startswith(_folder(log)) or name == log)
    yield Store(
        "W&B offline runs" if len(logs) > 1 else next(iter(logs)).rpartition("/")[2], TRACKER, runs, owned, notes
    )


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == MARK


def _folder(name: str) -> str:
    """Return the directory of a .wandb file; a file at the top has none of its own."""
    folder, slash, _ = name.rpartition("/")
    return folder + slash if slash else "\x00"


class _Description:
    """Everything of a run but its points."""

    def __init__(self, path: Path) -> None:
        self.run_id = self.project = self.name = self.user = self.group = self.notes = self.job = self.host = ""
        self.tags: list[str] = []
        self.config: dict[str, Any] = {}
        self.start_ms: int | None = None
        self.exit_code: int | None = None
        self.last_ms: int | None = None
        self.missing = 0
        records = _Records(path)
        for record in records:
            if _RUN in record:
                self._run(_fields(record[_RUN][-1]))
            elif _CONFIG in record:
                self._config(_fields(record[_CONFIG][-1]))
            elif _EXIT in record:
                code = _fields(record[_EXIT][-1]).get(1, [0])[-1]
                self.exit_code = code if isinstance(code, int) else 0
            elif _HISTORY in record:
                time = number_of(_history(record).get("_timestamp"))
                self.last_ms = milliseconds(time * 1000) if time is not None else self.last_ms
        self.missing = records.missing

    def _run(self, run: Fields) -> None:
        self.run_id, self.project = _field_text(run, 1) or self.run_id, _field_text(run, 3) or self.project
        self.group, self.job = _field_text(run, 6) or self.group, _field_text(run, 7) or self.job
        self.name, self.notes = _field_text(run, 8) or self.name, _field_text(run, 9) or self.notes
        self.host = _field_text(run, 13) or self.host
        self.tags = [tag.decode("utf-8", "replace") for tag in run.get(10, []) if isinstance(tag, bytes)] or self.tags
        if 4 in run:
            self._config(_fields(run[4][-1]))
        if 17 in run:
            time = _fields(run[17][-1])
            self.start_ms = milliseconds(time.get(1, [0])[-1] * 1000 + time.get(2, [0])[-1] // 10**6)

    def _config(self, config: Fields) -> None:
        for item in config.get(1, []):
            fields = _fields(item)
            key = _item_key(fields)
            if key and not key.startswith("_wandb"):
                self.config[key] = _json(fields.get(16, [b""])[-1])

    @property
    def status(self) -> str:
        if self.exit_code is None:
            return "RUNNING"
        return "FAILED" if self.exit_code else "FINISHED"


def _run(
    project: str, run_id: str, parts: Sequence[tuple[str, Path, _Description]], files: Mapping[str, Path]
) -> ForeignRun:
    last = parts[-1][2]
    config: dict[str, Any] = {}
    artifacts: dict[str, Path] = {}
    for name, _, description in parts:
        config |= description.config
        folder = _folder(name) + "files/"
        artifacts |= {other.removeprefix(folder): path for other, path in files.items() if other.startswith(folder)}
    labels = {"wandb.run_id": run_id, "wandb.group": last.group, "wandb.job_type": last.job, "wandb.host": last.host}
    labels |= {"wandb.tags": ", ".join(last.tags), "wandb.notes": last.notes}
    labels |= {"wandb.exit_code": str(last.exit_code)} if last.exit_code is not None else {}
    return ForeignRun(
        identity=identity_of(TRACKER, project, run_id),
        experiment=project or "W&B",
        name=last.name,
        user_name="",
        status=last.status,
        start_ms=parts[0][2].start_ms,
        end_ms=last.last_ms if last.exit_code is not None else None,
        parameters=flattened(config),
        tags={key: value for key, value in labels.items() if value},
        points=partial(_points, [path for _, path, _ in parts]),
        artifacts=artifacts,
    )


def _points(paths: Sequence[Path]) -> Iterator[Point]:
    """Read the history; the step is W&B's own (`_step`). Texts, pictures and histograms are no numbers."""
    step: Any = 0
    for path in paths:
        for record in _Records(path):
            if _STATS in record:
                yield from _sampled(_fields(record[_STATS][-1]), step)
            if _HISTORY not in record:
                continue
            values = _history(record)
            time = number_of(values.pop("_timestamp", None)) or 0.0
            step = values.pop("_step", 0)
            yield from row_points(values, time * 1000, step)


def _sampled(stats: Fields, step: Any) -> Iterator[Point]:
    """Read a sample of GPUs, processor and memory."""
    stamp = _fields(stats[2][-1]) if 2 in stats else {}
    time_ms = stamp.get(1, [0])[-1] * 1000 + stamp.get(2, [0])[-1] // 10**6
    for item in stats.get(3, []):
        fields = _fields(item)
        logged = point(f"{SYSTEM}{_item_key(fields)}", _json(fields.get(16, [b""])[-1]), time_ms, step)
        if logged is not None:
            yield logged


def _fields(message: Any) -> Fields:
    """Decode a part of a record. Raises Refused."""
    try:
        return fields_of(message)
    except Damaged as problem:
        raise Refused("a .wandb file contains a record that cannot be decoded; copy the file again") from problem


def _history(record: Fields) -> dict[str, Any]:
    history = _fields(record[_HISTORY][-1])
    values: dict[str, Any] = {}
    for item in history.get(1, []):
        fields = _fields(item)
        values[_item_key(fields)] = _json(fields.get(16, [b""])[-1])
    if "_step" not in values and 2 in history:
        values["_step"] = _fields(history[2][-1]).get(1, [0])[-1]
    return values


def _item_key(fields: Fields) -> str:
    nested = [part.decode("utf-8", "replace") for part in fields.get(2, []) if isinstance(part, bytes)]
    return ".".join(nested) if nested else _field_text(fields, 1)


def _field_text(fields: Fields, number: int) -> str:
    value = fields.get(number, [b""])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _json(content: Any) -> Any:
    """Read the JSON of a value; W&B writes NaN and Infinity as Python does."""
    if not isinstance(content, bytes):
        return None
    word = {b"NaN": math.nan, b"Infinity": math.inf, b"-Infinity": -math.inf}.get(content)
    if word is not None:
        return word
    try:
        return orjson.loads(content)
    except ValueError:
        return None


# --- records ---------------------------------------------------------------------------------------------------------


class _Records:
    """Iterates over the records of a file; afterwards `missing` is the number of bytes that could not be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.missing = 0

    def __iter__(self) -> Iterator[Fields]:
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(_HEADER)
            position = _HEADER
            while position < size:
                try:
                    content = _content(file)
                    record = fields_of(content) if content is not None else None
                except Damaged:
                    self.missing = size - position
                    return
                if record is None:
                    return
                position = file.tell()
                yield record


def _content(file: BinaryIO) -> bytes | None:
    """Return the next record, joined from its parts; None at the end. Raises Damaged."""
    parts: list[bytes] = []
    total = 0
    while True:
        left = _BLOCK - file.tell() % _BLOCK
        if left < _FRAME:
            file.seek(left, 1)  # the rest of a block that is too small for a frame is padding
        frame = file.read(_FRAME)
        if not frame and not parts:
            return None
        if len(frame) < _FRAME:
            raise Damaged
        checksum, length, kind = int.from_bytes(frame[:4], "little"), int.from_bytes(frame[4:6], "little"), frame[6]
        content = file.read(length)
        if len(content) < length or zlib.crc32(content, zlib.crc32(frame[6:])) != checksum:
            raise Damaged
        total += length
        is_expected = kind in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST))
        if not is_expected or total > _MAX_RECORD:
            raise Damaged
        parts.append(content)
        if kind in (_WHOLE, _LAST):
            return b"".join(parts)
