"""Lines of RLHF training in DeepSpeed-Chat, whose steps take several lines in any order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parlab.formats.grammar.cells import split_cells
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.records import Field, Record
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import field_for, slug, to_float
from parlab.formats.logs.deepspeed_records import TIMERS, cells

_E2E = re.compile(r"\s*\|E2E latency=")
_LATENCY = re.compile(r"\s*(End-to-End|Generation|Training)\s+=> ")
_STEP = re.compile(r"\s*[Ee]poch: \d{1,12} ?\| ?[Ss]tep: (\d{1,18}) ?\|")
# `Per-token Latency 12.5 ms`, `Batch Size: 64`, `BW: 211.22 GB/sec`.
_CELL = re.compile(
    r"(?P<key>[A-Za-z][\w./ -]{0,40}?):? (?P<value>[\d.]{1,20}(?:e[+-]?\d{1,3})?) ?(?P<unit>[A-Za-z/]{0,8})"
)
_NAMES = {
    "End-to-End Latency": "step_time_s",
    "Generation Latency": "generate",
    "Training Latency": "training",
    "End-to-End TFLOPs": "flops_per_gpu",
    "Generation TFLOPs": "generation_flops_per_gpu",
    "Training TFLOPs": "training_flops_per_gpu",
    "End-to-End Samples/sec": "samples_per_s",
    "End-to-End Batch Size": "global_batch_size",
    "End-to-End Total Seq. Length": "sequence_length",
}


class Chat:
    """Joins the lines of a step."""

    def __init__(self) -> None:
        self.is_seen = False
        """Whether this is a log of RLHF training."""
        self.iteration: int | None = None
        self.held: Record | None = None
        """The step whose latencies may follow."""
        self.is_joined = False
        """Whether the held step has its latencies."""
        self.latency: Record | None = None
        """Latencies whose step follows: in a log that begins in the middle of a step, or of another script."""

    def feed(self, line: int, body: str) -> list[Record] | None:
        """Read one line; None if it is not a line of RLHF training."""
        if _E2E.match(body):
            self.is_seen = True
            return self._last(line, body)
        if (match := _LATENCY.match(body)) is not None:
            self.is_seen = True
            return self._part(line, match[1], body[match.end() :])
        if (match := _STEP.match(body)) is not None:
            self.is_seen = True
            return self._step(line, int(match[1]), body[match.end() :])
        return None

    def _last(self, line: int, body: str) -> list[Record]:
        """Read `|E2E latency=7.99s |...`, which ends the step above it."""
        text = body.strip().strip("|").replace("|", ", ")
        records = record_of("step", line, None, None, cells(text))
        steps = [record for record in records if record.kind == "step"]
        if self.held is not None:
            step, self.held = self.held, None
            _join(step, steps)
            step.also, step.line, step.until = (step.line,), line, line
            steps = [step]
        done = [record for step in steps for record in self._done(step)]
        return done + [record for record in records if record.kind == "unread"]

    def _part(self, line: int, part: str, body: str) -> list[Record]:
        """Read `End-to-End => Latency: 13.81s, ...`."""
        records = record_of("step", line, None, None, list(_cells(part, body)))
        records = [record for record in records if record.kind == "step"]
        if self.held is not None and (part == "End-to-End" or self.is_joined):
            self.is_joined = True
            _join(self.held, records)
            return []
        if part == "End-to-End":
            earlier = self.flush()
            self.latency = records[0] if records else None
            return earlier
        if self.latency is not None:
            _join(self.latency, records)
        return []

    def _step(self, line: int, iteration: int, body: str) -> list[Record]:
        """Read `Epoch: 0 | Step: 1 | PPO Epoch: 1 | Actor Loss: 0.0112 | ...`."""
        named = [(cell, field_for(cell.key)) for cell in split_cells(body)]
        records = record_of("step", line, None, iteration, named)
        earlier = self.flush() if self.held is not None else []
        if not records or records[0].kind != "step":
            return earlier + records
        step, *bad = records
        if self.latency is None:
            self.held, self.is_joined = step, False
            return earlier + bad
        latency, self.latency = self.latency, None
        _join(step, [latency])
        return earlier + self._done(step) + bad

    def _done(self, step: Record) -> list[Record]:
        """Return a step, with its parts as timers."""
        timers = {name: step.values.pop(name) for name in TIMERS.values() if name in step.values}
        self.iteration = step.iteration
        return [step, Record("timers", step.line, timers, step.iteration)] if timers else [step]

    def close(self) -> list[Record]:
        """Return the step whose latencies have been printed; other lines follow."""
        return self.flush() if self.is_joined else []

    def flush(self) -> list[Record]:
        """Return a step of which only one line was printed."""
        steps = [step for step in (self.held, self.latency) if step is not None]
        self.held, self.latency, self.is_joined = None, None, False
        return [record for step in steps for record in self._done(step)]


def _join(step: Record, parts: list[Record]) -> None:
    """Add what other lines state to a step."""
    for part in parts:
        step.values |= part.values
        step.fields += part.fields
        step.raw += part.raw
        step.also += (part.line, *part.also)


def _cells(part: str, body: str) -> Iterator[tuple[Pair, Field]]:
    for piece in body.split(", "):
        if (match := _CELL.fullmatch(piece.strip())) is not None:
            key, text, unit = f"{part} {match['key']}", match["value"], match["unit"]
            name = _NAMES.get(key, slug(key) + "_s" * (unit in ("s", "ms")))
            scale = 1e12 if key.endswith("TFLOPs") else 1e-3 if unit == "ms" else 1.0
            yield Pair(key, text, unit, to_float(text)), Field(name, key, unit, scale)
