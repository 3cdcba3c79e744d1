"""DeepSpeed: the engine's own lines, of every age, and DeepSpeed-Chat's RLHF lines.

Source: deepspeed/utils/timer.py and logging.py, runtime/engine.py, runtime/pipe/engine.py, runtime/fp16/loss_scaler.py,
and applications/DeepSpeed-Chat. Throughput is over all ranks; `GB` of these lines is 2**30 bytes; `skipped` counts from
the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from parlab.formats.cells import split_cells
from parlab.formats.endings import ending
from parlab.formats.jsontext import loads
from parlab.formats.launch import MAX_ARGUMENTS, command_arguments, flatten, is_command, normal_name, typed
from parlab.formats.peel import peel
from parlab.formats.quantities import GIB, NUMBER, field_for, normal, slug, to_float, unit_of
from parlab.formats.records import Field, Kind, Record, unread
from parlab.formats.sniff import Signs

SIGNS: Signs = (
    (re.compile(r"SamplesPerSec="), 10),
    (re.compile(r"^\[(?:INFO|WARNING|DEBUG)\] \[\w+\.py:\d+:\w+\]"), 6),
    (re.compile(r"\b(?:forward|fwd|backward|bwd|step)_microstep: "), 10),
    (re.compile(r"^\s*steps: \d+ loss: \S+ iter time \(s\):"), 10),
    (re.compile(r"\|E2E latency=|^End-to-End => Latency:"), 10),
    (re.compile(r"\bOVERFLOW! (?:Rank \d+ )?Skipping step"), 4),
)

_TAG = re.compile(r"\s*(?:\[(?:INFO|WARNING|DEBUG|ERROR)\] )?(?:\[[\w.-]+\.py:\d+:\w+\] )?(?:\[Rank (-?\d{1,7})\] )?")
_THROUGHPUT = re.compile(
    r"(?:epoch=(?P<epoch>\d{1,12})/micro_step=(?P<micro>\d{1,18})/global_step=(?P<step>\d{1,18})"
    r"|(?P<old_epoch>\d{1,12})/(?P<old>\d{1,18})), (?=\w*SamplesPerSec=)"
)
_STEP = re.compile(r"step=(\d{1,18}), skipped=(\d{1,18}), lr=\[([^\]]{0,400})\](?:, mom=(.*))?")
_BREAKDOWN = re.compile(r"(?:rank=(\d{1,7}) )?time \(ms\) \|")
_PIPELINE = re.compile(r"\s*steps: (\d{1,18}) loss: (\S{1,30}) iter time \(s\): (\S{1,30}) samples/sec: (\S{1,30})")
_OVERFLOW = re.compile(r"(?i:overflow)! (?:Rank (\d{1,7}) )?Skipping step\. Attempted loss scale: ([\d.e+]{1,30})")
_MEMORY = re.compile(r"\bMA (\S{1,20}) GB\s+Max_MA (\S{1,20}) GB\s+CA (\S{1,20}) GB\s+Max_CA (\S{1,20}) GB")
_E2E = re.compile(r"\s*\|E2E latency=")
_E2E_NEW = re.compile(r"\s*(End-to-End|Generation|Training)\s+=> ")
_RLHF_OLD = re.compile(r"\s*epoch: (\d{1,12})\|step: (\d{1,18})\|")
_RLHF_NEW = re.compile(r"\s*Epoch: (\d{1,12}) \| Step: (\d{1,18}) \|")
_REWARD = re.compile(r"\s*[Aa]verage reward score: (\S{1,30})")
_PERPLEXITY = re.compile(r"\s*ppl: (\S{1,30})(?:, loss: (\S{1,30}))?\s*$")
_CONFIG = re.compile(r"\s{0,4}([a-z_]\w{0,80})(?: \.{2,}(?:\s|$)|\s{2,})(.*)")
_CONFIG_TAG = re.compile(r"\[config\.py:\d+:print")
_SCRIPT = re.compile(r"\s*(\d{1,9}) (\d{1,18}) ([a-z_]{2,40}) - (\S{1,30})\s*$")
_MAX_JSON = 3_000

_NAMES = {
    "CurrSamplesPerSec": "samples_per_s",
    "RunningAvgSamplesPerSec": "running_avg_samples_per_s",
    "SamplesPerSec": "running_avg_samples_per_s",
    "CurSamplesPerSec": "samples_per_s",
    "AvgSamplesPerSec": "running_avg_samples_per_s",
    "MemAllocated": "allocated_bytes",
    "MaxMemAllocated": "max_allocated_bytes",
    "E2E latency": "step_time_s",
    "Generate time": "generate",
    "Training time": "training",
    "Gather latency": "gather",
    "Others": "others",
}


class Parser:
    """Reads DeepSpeed's lines one by one."""

    def __init__(self) -> None:
        self.rlhf = False
        self.held: tuple[int, int, dict[str, float], list[Field], list[str]] | None = None
        self.latency: tuple[int, dict[str, float], list[Field], list[str]] | None = None
        self.arguments: dict[str, Any] = {}
        self.json: list[str] | None = None
        self.json_name = ""
        self.iteration: int | None = None

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line; an empty list means that it is nothing of DeepSpeed's."""
        if self.json is not None:
            return self._json(line, text)
        tag = _TAG.match(text)
        body = text[tag.end() :].rstrip("\r\n") if tag else text
        speaker = int(tag[1]) if tag and tag[1] else rank
        if _CONFIG_TAG.search(text[:80]):
            self._config(body)
            return []
        found = self._close_config(line)
        if "SamplesPerSec=" in body or "=> " in body or "step" in body or "Step" in body:
            found += self._step_line(line, speaker, time, body)
        elif " | " in body and "time (ms) |" in body:
            found += _breakdown(line, speaker, body, self.iteration)
        else:
            found += self._other(line, speaker, time, body)
        return found

    def finish(self) -> list[Record]:
        """Give out what a cut file left open."""
        return self._close_config(0) + self._flush()

    def _step_line(self, line: int, rank: int | None, time: str | None, body: str) -> list[Record]:
        match = _THROUGHPUT.search(body)
        if match:
            return self._throughput(line, rank, time, body, match)
        match = _STEP.search(body)
        if match:
            return self._log_dist(line, rank, time, match)
        match = _PIPELINE.match(body)
        if match:
            return self._pipeline(line, rank, time, match)
        if _E2E.match(body):
            return self._latency(line, body)
        match = _E2E_NEW.match(body)
        if match:
            return self._latency_new(line, match[1], body[match.end() :])
        match = _RLHF_OLD.match(body) or _RLHF_NEW.match(body)
        if match:
            return self._rlhf(line, body, match)
        if "microstep: " in body or "time (ms) |" in body:
            return _breakdown(line, rank, body, self.iteration)
        match = _OVERFLOW.search(body)
        if match:
            scale = to_float(match[2])
            values = {} if scale is None else {"overflow_loss_scale": scale}
            field = Field("overflow_loss_scale", "Attempted loss scale")
            speaker = int(match[1]) if match[1] else rank
            return [Record("metrics", line, values, rank=speaker, time=time, fields=(field,), raw=(match[2],))]
        return self._other(line, rank, time, body)

    def _other(self, line: int, rank: int | None, time: str | None, body: str) -> list[Record]:
        match = _MEMORY.search(body)
        if match:
            names = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes")
            return _record("memory", line, None, rank, None, zip(names, match.groups(), strict=True), "GB", GIB)
        match = _REWARD.match(body)
        if match:
            return _record("metrics", line, None, rank, None, [("reward", match[1])])
        match = _PERPLEXITY.match(body)
        if match:
            pairs = [("perplexity", match[1])] + ([("loss", match[2])] if match[2] else [])
            return _record("validation", line, self.iteration, rank, None, pairs)
        match = _SCRIPT.match(body)
        if match:
            name = slug(match[3]).replace("sample_per_sec", "samples_per_s")
            return _record("metrics", line, int(match[2]), rank, None, [(f"script_{name}", match[4])])
        if body.startswith("cmd = ") or is_command(body):
            arguments = command_arguments(body)
            return [Record("launch", line, data=arguments)] if arguments else []
        end = ending(body)
        return [Record("end", line, data=end, time=time, rank=rank)] if end else []

    def _throughput(
        self, line: int, rank: int | None, time: str | None, body: str, match: re.Match[str]
    ) -> list[Record]:
        values, fields, raw, bad = _pairs(line, body[match.end() :])
        step = int(match["step"] or match["old"])
        if match["step"]:
            for name in ("epoch", "micro"):
                values[{"micro": "micro_step"}.get(name, name)] = float(match[name])
        return [*self._step(line, step, rank, time, values, fields, raw), *bad]

    def _step(
        self,
        line: int,
        iteration: int,
        rank: int | None,
        time: str | None,
        values: dict[str, float],
        fields: list[Field],
        raw: list[str],
    ) -> list[Record]:
        """Make a step; inside RLHF the engines' own counts are no iterations, so they become figures beside them."""
        if not values:
            return []
        # `step=0` is printed when the optimizer is made, before any step.
        kind: Kind = "metrics" if self.rlhf or iteration == 0 else "step"
        if not self.rlhf:
            self.iteration = iteration
        else:
            values = {f"engine_{name}" if name.endswith("per_s") else name: value for name, value in values.items()}
        shown = tuple(fields), tuple(raw)
        return [Record(kind, line, values, iteration=iteration, rank=rank, time=time, fields=shown[0], raw=shown[1])]

    def _log_dist(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        values = {"skipped_total": float(match[2])}
        fields, raw = [Field("skipped_total", "skipped")], [match[2]]
        rate = to_float(match[3].split(",")[0])
        if rate is not None:
            values["learning_rate"] = rate
            fields.append(Field("learning_rate", "lr"))
            raw.append(match[3].split(",")[0])
        return self._step(line, int(match[1]), rank, time, values, fields, raw)

    def _pipeline(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        values: dict[str, float] = {}
        fields, raw, bad = [], [], []
        columns = (
            ("loss", "loss", ""),
            ("step_time_s", "iter time (s)", "s"),
            ("samples_per_s", "samples/sec", "samples/s"),
        )
        for (name, key, unit), text in zip(columns, match.groups()[1:], strict=True):
            value = to_float(text)
            if value is None:
                bad.append(unread(line, "not a finite number", f"{key}: {text}"))
                continue
            values[name] = value
            fields.append(Field(name, key, unit))
            raw.append(text)
        return [*self._step(line, int(match[1]), rank, time, values, fields, raw), *bad]

    def _latency(self, line: int, body: str) -> list[Record]:
        """Read `|E2E latency=7.99s |...`, which follows the line that names its step."""
        self.rlhf = True
        values, fields, raw, bad = _pairs(line, body.strip().strip("|").replace("|", ", "))
        held, self.held = self.held, None
        iteration = held[1] if held else None
        if held:
            values, fields, raw = {**held[2], **values}, held[3] + fields, held[4] + raw
        return self._with_timers(line, iteration, values, fields, raw) + bad

    def _with_timers(
        self, line: int, iteration: int | None, values: dict[str, float], fields: list[Field], raw: list[str]
    ) -> list[Record]:
        """Split the parts of a step from the step."""
        names = ("generate", "training", "gather", "others")
        timers = {name: values.pop(name) for name in names if name in values}
        self.iteration = iteration
        found = [Record("step", line, values, iteration=iteration, fields=tuple(fields), raw=tuple(raw))]
        if timers:
            found.append(Record("timers", line, timers, iteration=iteration))
        return found

    def _latency_new(self, line: int, part: str, body: str) -> list[Record]:
        """Read `End-to-End => Latency: 13.81s, ...`, which stands before the line that names its step."""
        self.rlhf = True
        values: dict[str, float] = {}
        fields: list[Field] = []
        raw: list[str] = []
        for piece in body.split(", "):
            key, _, text = piece.partition(":") if ":" in piece else _last_word(piece)
            number = NUMBER.match(text.strip())
            value = to_float(number[0]) if number else None
            name = _new_name(part, key.strip())
            if value is not None and name and number:
                unit = text.strip()[number.end() :].strip()
                scale = 1e12 if name.endswith("flops_per_gpu") else 1.0
                if unit == "ms":
                    name, scale = f"{name}_s", 1e-3
                values[name] = normal(value, scale)
                fields.append(Field(name, f"{part} {key.strip()}", unit, scale))
                raw.append(number[0])
        if part == "End-to-End":
            found = self._flush()
            self.latency = (line, values, fields, raw)
            return found
        if self.latency:
            self.latency[1].update(values)
            self.latency[2].extend(fields)
            self.latency[3].extend(raw)
        return []

    def _rlhf(self, line: int, body: str, match: re.Match[str]) -> list[Record]:
        self.rlhf = True
        values: dict[str, float] = {}
        fields: list[Field] = []
        raw: list[str] = []
        bad: list[Record] = []
        for cell in split_cells(body[match.end() :]):
            if cell.value is None:
                bad.append(unread(line, "no number: the line is cut or damaged", f"{cell.key}: {cell.text}"))
                continue
            field = field_for(cell.key)
            values[field.name] = cell.value
            fields.append(field)
            raw.append(cell.text)
        found = self._flush() if self.held else []
        if not values:
            return found + bad
        if self.latency:
            _, more, more_fields, more_raw = self.latency
            self.latency = None
            merged = self._with_timers(line, int(match[2]), {**values, **more}, fields + more_fields, raw + more_raw)
            return found + merged + bad
        self.held = (line, int(match[2]), values, fields, raw)
        return found + bad

    def _flush(self) -> list[Record]:
        found: list[Record] = []
        if self.held:
            line, iteration, values, fields, raw = self.held
            self.held = None
            found += self._with_timers(line, iteration, values, fields, raw)
        if self.latency:
            line, values, fields, raw = self.latency
            self.latency = None
            found += self._with_timers(line, None, values, fields, raw)
        return found

    def _config(self, body: str) -> None:
        """Read one line of the configuration that the engine prints at its start."""
        match = _CONFIG.match(body)
        text = match[2].strip() if match else body.strip()
        name = match[1] if match else ""
        if text.endswith("{") and ("= {" in body or text == "{"):
            self.json, self.json_name = ["{"], name if match and text == "{" else body.partition("=")[0].strip()
        elif match and len(self.arguments) < MAX_ARGUMENTS:
            self.arguments.setdefault(normal_name(name), typed(text))

    def _json(self, line: int, text: str) -> list[Record]:
        """Collect a JSON block up to its closing brace in the first column."""
        assert self.json is not None
        self.json.append(text)
        if not text.startswith("}") and len(self.json) < _MAX_JSON:
            return []
        joined, self.json = "".join(self.json), None
        try:
            data = loads(joined)
        except ValueError:
            return [unread(line, "a printed JSON block that is no JSON", self.json_name)]
        prefix = "" if self.json_name == "json" else f"{self.json_name}."
        for name, value in flatten(data, prefix):
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(name, value)
        return []

    def _close_config(self, line: int) -> list[Record]:
        if self.json is not None:
            self.json = None
        if not self.arguments:
            return []
        arguments, self.arguments = self.arguments, {}
        return [Record("launch", line, data=arguments)]


def _pairs(line: int, text: str) -> tuple[dict[str, float], list[Field], list[str], list[Record]]:
    """Read `Key=1.5GB, Key=2s (65.04%)` cells."""
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    bad: list[Record] = []
    for piece in text.split(", ")[:100]:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not key:
            continue
        number = NUMBER.match(value)
        amount = to_float(number[0]) if number else None
        if not equals or number is None or amount is None:
            bad.append(unread(line, "no number: the line is cut or damaged", piece))
            continue
        unit = value[number.end() :].partition("(")[0].strip()
        known = unit_of(unit) if unit else None
        name = _NAMES.get(key) or slug(key)
        field = Field(name, key, unit, known[1] if known else 1.0)
        values[name] = normal(amount, field.scale)
        fields.append(field)
        raw.append(number[0])
    return values, fields, raw, bad


def _last_word(piece: str) -> tuple[str, str, str]:
    words = piece.rsplit(" ", 2)
    return (words[0], "", " ".join(words[1:])) if len(words) == 3 else (piece, "", "")


def _new_name(part: str, key: str) -> str | None:
    if key == "Latency":
        return {"End-to-End": "step_time_s", "Generation": "generate", "Training": "training"}[part]
    if key == "Samples/sec":
        return "samples_per_s"
    name = slug(part) + "_" + slug(key)
    if key == "TFLOPs":
        return "flops_per_gpu" if part == "End-to-End" else slug(part) + "_flops_per_gpu"
    return {"Batch Size": "global_batch_size", "Total Seq. Length": "sequence_length"}.get(key, name)


def _breakdown(line: int, rank: int | None, body: str, iteration: int | None) -> list[Record]:
    """Read `rank=0 time (ms) | fwd_microstep: 1.00 | ...`; the last cell of a cut line is left out."""
    match = _BREAKDOWN.search(body)
    if match is None:
        return []
    cells = split_cells(body[match.end() :])
    found = [unread(line, "no number: the line is cut or damaged", c.key) for c in cells if c.value is None]
    pairs = [(cell.key, cell.text) for cell in cells if cell.value is not None]
    speaker = int(match[1]) if match[1] else rank
    return _record("timers", line, iteration, speaker, None, pairs, "ms", 1e-3) + found


def _record(
    kind: Kind,
    line: int,
    iteration: int | None,
    rank: int | None,
    time: str | None,
    pairs: Iterable[tuple[str, str]],
    unit: str = "",
    scale: float = 1.0,
) -> list[Record]:
    """Make a record of (name, text) pairs that share a unit; what is no number is unread."""
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    bad: list[Record] = []
    for name, text in pairs:
        value = to_float(text)
        if value is None:
            bad.append(unread(line, "not a finite number", f"{name}: {text}"))
            continue
        values[name] = normal(value, scale)
        fields.append(Field(name, name, unit, scale))
        raw.append(text)
    if not values:
        return bad
    return [
        Record(kind, line, values, iteration=iteration, rank=rank, time=time, fields=tuple(fields), raw=tuple(raw)),
        *bad,
    ]


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a log of the DeepSpeed engine; yields launches, steps, timers, memory, validation and how it ended."""
    parser = Parser()
    for line, rank, time, text in peel(lines):
        yield from parser.feed(line, rank, time, text)
    yield from parser.finish()
