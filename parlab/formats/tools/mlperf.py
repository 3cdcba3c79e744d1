"""MLPerf Training: `:::MLLOG {json}`, also with tags of a launcher in front, and `:::MLL` of 2019.

Source: mlcommons/logging (mllog) and training_policies. The score is the last run_stop minus run_start. `throughput` of
tracked_stats counts tokens in GPT-3 and sequences elsewhere. GPT-3 also counts samples, epochs and steps in tokens:
positions are divided by sequence length and batch where they are multiples of them. Every process writes init_start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Ending, Field, Record, figure, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import LARGEST, slug
from parlab.formats.launch import MAX_ARGUMENTS

SIGNS: Signs = ((re.compile(r":::MLL(?:OG)? "), 20),)

_EVENT = re.compile(r":::MLLOG (\{.*)")
_OLD = re.compile(r":::MLL (\d{1,12}(?:\.\d{1,9})?) (\w{1,80}): (\{.*)")
_START = re.compile(r":::MLL(?:OG)? ")
# Habana's reference names its platform after its number of accelerators and writes init_start once.
_PLATFORM = re.compile(r"gaudi\d?-(\d{1,7})")
_POSITIONS = ("step", "samples_count", "step_num", "epoch_num", "first_epoch_num")
_STEP_TIMES = frozenset({"train_step_timing", "train_step_time", "step_time"})
_MAX_TIME_MS = 1e14
_TOKENS = frozenset({"gpt3"})


def _json_float(value: Any) -> float | None:
    """Return a JSON number as a float; None for other values, nan and numbers beyond LARGEST."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)


class Parser:
    """State of one log: settings, starts of phases, number of processes."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.has_launch = False
        self.events = 0
        self.processes = 0
        self.first_ms: float | None = None
        self.run_start: float | None = None
        self.run_stop: tuple[int, float, str] | None = None
        self.block: tuple[float, float | None] | None = None
        self.evaluation: float | None = None
        self.throughput = False
        self.steps = 0

    def event(self, line: int, data: dict[str, Any]) -> list[Record]:
        """Read one event."""
        key, value, metadata = data.get("key"), data.get("value"), data.get("metadata")
        when = _json_float(data.get("time_ms"))
        if not isinstance(key, str) or (when is not None and not 0 <= when < _MAX_TIME_MS):
            return [unread(line, "an event without key or with an invalid time", str(key))]
        self.events += 1
        details = metadata if isinstance(metadata, dict) else {}
        if when is not None:
            timed = self._timed(line, key[:80], when, details)
            if timed is not None:
                return timed
        if key == "tracked_stats" and isinstance(value, dict):
            return self._stats(line, value, details)
        if key in ("eval_accuracy", "eval_loss", "eval_error"):
            return self._evaluated(line, key, value, details)
        if isinstance(value, str | int | float) and key != "cache_clear":
            return self._setting(line, key[:80], value)
        return []

    def _timed(self, line: int, key: str, when: float, details: dict[str, Any]) -> list[Record] | None:
        """Read the events of init, run, blocks and evaluations; return None for other keys."""
        if key == "init_start":
            self.processes += 1
            self.first_ms = when if self.first_ms is None else min(self.first_ms, when)
            return []
        if key == "run_start":
            self.run_start = when
            records = self._launch(line)
            if self.first_ms is not None and when >= self.first_ms:
                records.append(_metric(line, "init_s", "run_start - init_start", (when - self.first_ms) / 1e3))
            return records
        if key == "run_stop":
            self.run_stop = (line, when, str(details.get("status", "unknown"))[:80])
            return []
        if key == "block_start":
            self.block = (when, _position(details))
            return []
        if key == "block_stop":
            return self._block(line, when, details)
        if key == "eval_start":
            self.evaluation = when
            return []
        if key == "eval_stop":
            began, self.evaluation = self.evaluation, None
            return [] if began is None or when < began else [_metric(line, "eval_s", key, (when - began) / 1e3)]
        return [] if key in ("init_stop", "epoch_start", "epoch_stop") else None

    def _block(self, line: int, when: float, details: dict[str, Any]) -> list[Record]:
        """Return the duration of a block and, if both ends have a sample count, its rate."""
        block, self.block = self.block, None
        if block is None or when <= block[0]:
            return []
        seconds = (when - block[0]) / 1e3
        metrics = [_metric(line, "block_s", "block_stop - block_start", seconds)]
        end = _json_float(details.get("samples_count"))
        if end is not None and block[1] is not None and end > block[1]:
            samples = end - block[1]
            metrics.append(_metric(line, "block_samples", "samples_count", samples))
            metrics.append(_metric(line, "block_samples_per_s", "samples_count", samples / seconds))
        return metrics

    def _stats(self, line: int, stats: dict[str, Any], details: dict[str, Any]) -> list[Record]:
        """Read tracked_stats: the time of a training step becomes a step, everything else a metric.

        Statistics with a throughput summarise a block; after the single steps of that block, their mean is no step.
        """
        records = self._launch(line)
        position = details.get("step")
        summary = "throughput" in stats and self.steps > 0
        self.steps += 0 if summary else any(name in _STEP_TIMES for name in stats)
        for name, content in list(stats.items())[:100]:
            value = _json_float(content)
            if value is None:
                records.append(unread(line, "not a finite number", f"{name}: {content}"))
            elif name in _STEP_TIMES and summary:
                records.append(_metric(line, "block_step_time_s", name, value))
            elif name in _STEP_TIMES:
                field, raw = Field("step_time_s", name[:80], "s"), (str(content),)
                iteration = self._iteration(position)
                records.append(Record("step", line, {field.name: value}, iteration=iteration, fields=(field,), raw=raw))
            elif name == "throughput":
                self.throughput = True
                tokens = self.settings.get("submission_benchmark") in _TOKENS
                records.append(_metric(line, "tokens_per_s" if tokens else "samples_per_s", name, value))
            else:
                seconds = "_s" if name.endswith(("_timing", "_time")) else ""
                records.append(_metric(line, slug(name) + seconds, name[:80], value))
        return records

    def _iteration(self, position: Any) -> int | None:
        """Convert a position in tokens or samples to iterations if it is a multiple of an iteration's size."""
        value = _json_float(position)
        if value is None or value != int(value) or not 0 <= value < 2**60:
            return None
        batch = _json_float(self.settings.get("global_batch_size")) or 0.0
        length = _json_float(self.settings.get("max_sequence_length")) or 0.0
        for size in (batch * length, batch):
            if size >= 1 and value >= size and value % size == 0:
                return int(value // size)
        return int(value)

    def _evaluated(self, line: int, key: str, value: Any, details: dict[str, Any]) -> list[Record]:
        number = _json_float(value)
        if number is None:
            return [unread(line, "not a finite number", f"{key}: {value}")]
        position = _position(details)
        iteration = None if position is None or not 0 <= position < 2**60 else int(position)
        field = Field(key, key)
        return [Record("validation", line, {key: number}, iteration=iteration, fields=(field,), raw=(str(value),))]

    def _setting(self, line: int, key: str, value: str | int | float) -> list[Record]:
        if len(self.settings) < MAX_ARGUMENTS and (isinstance(value, str) or _json_float(value) is not None):
            self.settings.setdefault(key, value[:2000] if isinstance(value, str) else value)
            if self.has_launch:
                return [Record("launch", line, data={key: value})]
        return []

    def _launch(self, line: int) -> list[Record]:
        """Return the launch with the settings so far, once."""
        if self.has_launch:
            return []
        self.has_launch = True
        data = dict(self.settings)
        platform = _PLATFORM.fullmatch(str(data.get("submission_platform", "")))
        if self.processes > 1:
            data["world_size"] = self.processes
        elif platform:
            data["world_size"] = int(platform[1])
        return [Record("launch", line, data=data, opens=True)] if data else []

    def finish(self) -> list[Record]:
        """Return the score, at the end or when another launch starts in the same file."""
        records = self._launch(0)
        if self.run_stop is not None:
            line, when, status = self.run_stop
            if self.run_start is not None and when >= self.run_start:
                seconds = (when - self.run_start) / 1e3
                records.append(_metric(line, "time_to_train_s", "run_stop - run_start", seconds))
                basis = "last run_stop - run_start"
                records.append(figure(line, "time_to_train_s", seconds, basis, "s"))
                records += self._overall(line, seconds)
            states = {"success": "finished", "aborted": "cancelled"}
            records.append(Record("end", line, data=Ending(states.get(status, "unknown"), f"run_stop: {status}")))  # type: ignore[arg-type]
        if self.events:
            records.append(figure(0, "events", float(self.events), f"{self.events} MLLOG lines"))
        return records

    def _overall(self, line: int, seconds: float) -> list[Record]:
        """Return the trained samples or tokens divided by the score, if the log prints no throughput."""
        tokens = self.settings.get("submission_benchmark") in _TOKENS
        key = "trained_samples" if "trained_samples" in self.settings or not tokens else "train_samples"
        trained = _json_float(self.settings.get(key))
        if self.throughput or trained is None or trained <= 0 or seconds <= 0:
            return []
        name = "tokens_per_s" if tokens else "samples_per_s"
        return [_metric(line, name, f"{key} / (run_stop - run_start)", trained / seconds)]


def _position(details: dict[str, Any]) -> float | None:
    """Return the position in the training, in the log's own unit."""
    return next((number for name in _POSITIONS if (number := _json_float(details.get(name))) is not None), None)


def _metric(line: int, name: str, key: str, value: float) -> Record:
    return Record("metrics", line, {name: value}, fields=(Field(name, key),), raw=(str(value),))


def _load(text: str) -> dict[str, Any] | None:
    """Parse the JSON object at the start of a text; return None if there is none."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python's slower parser accepts NaN and text after the object. It would also turn damaged escapes into lone
        # surrogates, which cannot be encoded.
        if "\\ud" in text.lower():
            return None
        try:
            data, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return None
    return data if isinstance(data, dict) else None


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read an MLPerf log; yield launch, steps, validation, metrics and the score `time_to_train_s`.

    Positions of `validation` are the log's own (samples, tokens or epochs).
    """
    parser = Parser()
    for line, rank, time, text in peel(lines, _START):
        if ":::MLL" not in text:
            end = ending(text)
            if end:
                yield Record("end", line, data=end, rank=rank, time=time)
            continue
        match = _EVENT.search(text)
        old = None if match else _OLD.search(text)
        data = _load(match[1] if match else old[3] if old else "")
        if data is None:
            yield unread(line, "no JSON object after the tag", text)
            continue
        if old:
            data = {**data, "key": old[2], "time_ms": float(old[1]) * 1e3}
        if parser.run_stop and data.get("key") in ("init_start", "run_start"):
            yield from parser.finish()
            parser = Parser()
        yield from parser.event(line, data)
    yield from parser.finish()
