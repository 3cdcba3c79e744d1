"""TensorBoard event files: scalars become steps and validation, texts (arguments) a launch.

Read by the `tensorboard` package's own reader, which opens the file itself: this is the one reader that gets a path.
What follows a damaged record cannot be read; how much that is, is said. Tags are those of Megatron-LM, Hugging Face,
torchtitan, NeMo and Lightning; any other scalar keeps the last part of its tag as name. Some trainers plot over samples
instead of iterations: copies (`... vs samples`) are left out, DeepSpeed's `Train/Samples/...` have no iteration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlab.formats.grammar.quantities import GIB, LARGEST, field_for, normal
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.launch import MAX_ARGUMENTS, flatten, typed

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

NAME = "tensorboard"
# The first record of every event file says `brain.Event:2`.
_MARK = b"brain.Event:"
MARK_WITHIN = 128
_FRAME = 16  # length, its checksum, and the checksum of the content
MAX_NAMES = 400

_HELD_OUT = re.compile(r"(?:^|/)(?:eval|val|valid|validation|test)[/_ -]|\bvalidation\b|^val_loss\b")
_COPY = re.compile(r" vs (?:samples|tokens|steps|time|gigabyte\w*|\w*flops)\b")
_BY_SAMPLES = re.compile(r"^(?:Train|Validation)/Samples/")
_TOTALS = re.compile(r"^train/(?:train_|total_flos)")
_KNOWN = {
    "iteration-time": Field("step_time_s", "", "s"),
    "train_step_timing in s": Field("step_time_s", "", "s"),
    "end_to_end(s)": Field("step_time_s", "", "s"),
    "batch-size": Field("global_batch_size", ""),
    "lm loss": Field("lm_loss", ""),
    "global_avg_loss": Field("loss", ""),
    "learning-rate": Field("learning_rate", ""),
    "lr": Field("learning_rate", ""),
    "grad-norm": Field("grad_norm", ""),
    "throughput(tps)": Field("tokens_per_s_per_gpu", "", "tokens/s"),
    "tflops": Field("flops_per_gpu", "", "TFLOP/s", 1e12),
    "mfu(%)": Field("mfu_pct", "", "%"),
    "max_reserved(GiB)": Field("max_reserved_bytes", "", "GiB", GIB),
    "max_active(GiB)": Field("max_active_bytes", "", "GiB", GIB),
    "train_runtime": Field("train_runtime_s", "", "s"),
    "train_samples_per_second": Field("samples_per_s", "", "samples/s"),
    "train_steps_per_second": Field("steps_per_s", "", "steps/s"),
}


def is_event_file(start: bytes) -> bool:
    """Return whether the first bytes are those of an event file."""
    return _MARK in start[:MARK_WITHIN]


def field(tag: str) -> Field:
    """Return the normal name of a scalar's tag: `lm-loss-training/lm loss` -> lm_loss."""
    last = tag.rsplit("/", 1)[-1]
    scalar_field = _KNOWN.get(last)
    return (scalar_field or field_for(last))._replace(key=tag)


class Group:
    """The scalars of one step."""

    def __init__(self, kind: Kind, step: int, by_samples: bool, time: str | None, number: int) -> None:
        self.key = (kind, step, by_samples)
        self.time = time
        self.number = number
        self.values: dict[str, float] = {"consumed_samples": float(step)} if by_samples else {}
        self.fields: list[Field] = []
        self.raw: list[str] = []

    def add(self, column: Field, value: float) -> None:
        if len(self.fields) < MAX_NAMES:
            self.values[column.name] = normal(value, column.scale)
            self.fields.append(column)
            self.raw.append(repr(value))

    def record(self) -> Record:
        kind, step, by_samples = self.key
        return Record(
            kind,
            self.number,
            self.values,
            iteration=None if by_samples else step,
            time=self.time,
            fields=tuple(self.fields),
            raw=tuple(self.raw),
        )


class Parser:
    """Groups scalars by step; events arrive one by one, mostly in the order of steps."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.groups: dict[Kind, Group] = {}

    def event(self, number: int, event: Event) -> Iterator[Record]:
        """Read one event; `number` is its position in the file, from 1."""
        for value in event.summary.value:
            tag = value.tag[:400]
            text = _summary_text(value)
            if text is not None:
                self._argument(tag, text)
                continue
            scalar = _scalar(value)
            if scalar is None or _COPY.search(tag):
                continue
            if not -LARGEST < scalar < LARGEST:
                yield unread(number, "not a finite number", f"{tag}: {scalar}")
                continue
            yield from self._add(number, event, tag, scalar)

    def _add(self, number: int, event: Event, tag: str, scalar: float) -> Iterator[Record]:
        kind: Kind = "metrics" if _TOTALS.match(tag) else "validation" if _HELD_OUT.search(tag) else "step"
        by_samples = _BY_SAMPLES.match(tag) is not None
        group = self.groups.get(kind)
        if group is None or group.key != (kind, event.step, by_samples):
            if group is not None:
                yield from self._flush(group)
            group = self.groups[kind] = Group(kind, event.step, by_samples, _time(event.wall_time), number)
        group.add(field(tag), scalar)

    def _flush(self, group: Group) -> Iterator[Record]:
        """Return the current step, preceded by the launch for the first step."""
        arguments, self.arguments = self.arguments, {}
        if arguments:
            yield Record("launch", group.number, data=arguments, opens=True)
        yield group.record()

    def _argument(self, tag: str, text: str) -> None:
        """Store a text as an argument; a JSON object (`args` of Hugging Face) contains many arguments."""
        name = tag.removesuffix("/text_summary")
        pairs: Iterator[tuple[str, Any]] = iter([(name, typed(text))])
        # An escape may be an unpaired surrogate, which cannot be encoded.
        if text.lstrip().startswith("{") and "\\ud" not in text.lower():
            try:
                data = json.loads(text)
            except (ValueError, RecursionError):
                data = None
            if isinstance(data, dict):
                pairs = flatten(data)
        for key, value in pairs:
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(key, value)

    def finish(self) -> Iterator[Record]:
        for group in self.groups.values():
            yield from self._flush(group)
        if self.arguments:
            yield Record("launch", 0, data=self.arguments, opens=True)


def _scalar(value: Summary.Value) -> float | None:
    """Return a scalar, stored as such or as a tensor of one number; None for images, histograms and others."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    tensor = value.tensor
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        return float(make_ndarray(tensor).item())
    except (TypeError, ValueError):
        return None


def _summary_text(value: Summary.Value) -> str | None:
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name != "text" or not value.tensor.string_val:
        return None
    return value.tensor.string_val[0][:1_000_000].decode("utf-8", "replace")  # type: ignore[no-any-return]


def _time(wall: float) -> str | None:
    return datetime.fromtimestamp(wall, UTC).isoformat() if 0 <= wall < 4e9 else None


class MissingPackageError(Exception):
    """The optional package tensorboard is not installed; the message names the file, the package and the remedy."""


def read(path: Path, name: str = "") -> Iterator[Record]:
    """Read an event file; yields launch, steps (iteration = TensorBoard's step), validation and totals.

    A record's line is the number of its event. Errors call the file `name`, by default the last part of its path.
    Raises MissingPackageError, and OSError for a file that cannot be opened; nothing in the file raises.
    """
    # Imported here, because the import takes a third of a second and only event files need it.
    try:
        import tensorboard.backend.event_processing.event_file_loader
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"{name or path.name} is a TensorBoard event file, and the package that reads it, tensorboard, is not"
            " installed here. Run `pip install tensorboard`, then read the file again."
        ) from error
    return _records(path)


def _records(path: Path) -> Iterator[Record]:
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    size, position, number = path.stat().st_size, 0, 0
    parser = Parser()
    try:
        for number, content in enumerate(RawEventFileLoader(str(path)).Load(), 1):
            position += len(content) + _FRAME
            try:
                event = Event.FromString(content)
            except DecodeError:
                yield unread(number, "an event that cannot be decoded", "")
                continue
            yield from parser.event(number, event)
    except (MemoryError, OverflowError):
        yield unread(number + 1, "an event whose stated size exceeds the memory", "")
    yield from parser.finish()
    if position < size:
        reason = f"the last {size - position} of {size} bytes are damaged or cut off"
        yield unread(number + 1, reason, "")
