"""TensorBoard event files: scalars become steps and validation, texts (arguments) a launch.

The only binary format: this is the one reader that gets a path. What follows a damaged record cannot be read; how much
that is, is said. Tags are those of Megatron-LM, Hugging Face,
torchtitan, NeMo and Lightning; any other scalar keeps the last part of its tag as name. Some trainers plot over samples
instead of iterations: copies (`... vs samples`) are left out, DeepSpeed's `Train/Samples/...` have no iteration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parlab.formats.exports.event_records import Contents, Event, event_of
from parlab.formats.exports.protobuf import Damaged
from parlab.formats.grammar.jsontext import loads
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.rows import parts_of
from parlab.formats.grammar.units import LARGEST, field_for
from parlab.formats.launch import MAX_ARGUMENTS, flatten, typed

NAME = "tensorboard"
MAX_NAMES = 400

_HELD_OUT = re.compile(r"(?:^|/)(?:eval|val|valid|validation|test)[/_ -]|\bvalidation\b|^val_loss\b")
_COPY = re.compile(r" vs (?:samples|tokens|steps|time|gigabyte\w*|\w*flops)\b")
_BY_SAMPLES = re.compile(r"^(?:Train|Validation)/Samples/")
_TOTALS = re.compile(r"^train/(?:train_|total_flos)")


def field(tag: str) -> Field:
    """Return the normal name of a scalar's tag: `lm-loss-training/lm loss` -> lm_loss."""
    last = tag.rsplit("/", 1)[-1]
    known = known_to("events").get(last)
    return field_for(last)._replace(key=tag) if known is None else known.field(tag)


class Group:
    """The scalars of one step."""

    def __init__(self, kind: Kind, step: int, by_samples: bool, time: str | None, number: int) -> None:
        self.key = (kind, step, by_samples)
        self.time = time
        self.number = number
        self.numbers: list[tuple[Field, str, float]] = []

    def record(self) -> Record:
        kind, step, by_samples = self.key
        values, fields, raw, _ = parts_of(self.numbers)
        if by_samples:
            values = {"consumed_samples": float(step)} | values
        return Record(kind, self.number, values, None if by_samples else step, None, self.time, fields, raw)


class Parser:
    """Groups scalars by step; events arrive one by one, mostly in the order of steps."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.groups: dict[Kind, Group] = {}

    def event(self, number: int, event: Event) -> Iterator[Record]:
        """Read one event; `number` is its position in the file, from 1."""
        for name, value in event.values:
            tag = name[:400]
            if isinstance(value, str):
                self._argument(tag, value)
            elif _COPY.search(tag):
                continue
            elif not -LARGEST < value < LARGEST:
                yield unread(number, "not a finite number", f"{tag}: {value}")
            else:
                yield from self._add(number, event, tag, value)

    def _add(self, number: int, event: Event, tag: str, scalar: float) -> Iterator[Record]:
        kind: Kind = "metrics" if _TOTALS.match(tag) else "validation" if _HELD_OUT.search(tag) else "step"
        by_samples = _BY_SAMPLES.match(tag) is not None
        group = self.groups.get(kind)
        if group is None or group.key != (kind, event.step, by_samples):
            if group is not None:
                yield from self._flush(group)
            group = self.groups[kind] = Group(kind, event.step, by_samples, _time(event.time), number)
        if len(group.numbers) < MAX_NAMES:
            group.numbers.append((field(tag), repr(scalar), scalar))

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
        if text.lstrip().startswith("{"):
            with suppress(ValueError):
                pairs = flatten(loads(text))
        for key, value in pairs:
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(key, value)

    def finish(self) -> Iterator[Record]:
        for group in self.groups.values():
            yield from self._flush(group)
        if self.arguments:
            yield Record("launch", 0, data=self.arguments, opens=True)


def _time(wall: float) -> str | None:
    return datetime.fromtimestamp(wall, UTC).isoformat() if 0 < wall < 4e9 else None


def read(path: Path) -> Iterator[Record]:
    """Read an event file; yields launch, steps (iteration = TensorBoard's step), validation and totals.

    A record's line is the number of its event. Raises OSError for a file that cannot be opened; nothing in it raises.
    """
    contents = Contents(path, is_checked=True)
    size, number = contents.left, 0
    parser = Parser()
    for number, content in enumerate(contents, 1):
        try:
            event = event_of(content)
        except Damaged:
            yield unread(number, "an event that cannot be decoded", "")
            continue
        yield from parser.event(number, event)
    yield from parser.finish()
    if contents.left:
        yield unread(number + 1, f"the last {contents.left} of {size} bytes are damaged or cut off", "")
