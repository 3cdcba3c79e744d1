"""Lines of RLHF training in DeepSpeed-Chat, whose steps take two lines in either order."""

from __future__ import annotations

import re

from parlab.formats.grammar.cells import split_cells
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.units import NUMBER, field_for, normal, slug, to_float
from parlab.formats.logs.deepspeed_records import pairs

_E2E = re.compile(r"\s*\|E2E latency=")
_E2E_NEW = re.compile(r"\s*(End-to-End|Generation|Training)\s+=> ")
_RLHF_OLD = re.compile(r"\s*epoch: (\d{1,12})\|step: (\d{1,18})\|")
_RLHF_NEW = re.compile(r"\s*Epoch: (\d{1,12}) \| Step: (\d{1,18}) \|")


class Chat:
    """Joins the two lines of a step."""

    def __init__(self) -> None:
        self.is_seen = False
        """Whether this is a log of RLHF training."""
        self.iteration: int | None = None
        self.is_joined = False
        """Whether the held step has its latencies."""
        self.held: tuple[int, int, dict[str, float], list[Field], list[str]] | None = None
        self.latency: tuple[int, dict[str, float], list[Field], list[str]] | None = None
        self.lines: list[int] = []
        """Lines that state the step."""

    def feed(self, line: int, body: str) -> list[Record] | None:
        """Read one line; None if it is not a line of RLHF training."""
        if _E2E.match(body):
            return self._latency(line, body)
        match = _E2E_NEW.match(body)
        if match:
            return self._latency_new(line, match[1], body[match.end() :])
        match = _RLHF_OLD.match(body) or _RLHF_NEW.match(body)
        return self._rlhf(line, body, match) if match else None

    def _latency(self, line: int, body: str) -> list[Record]:
        """Read `|E2E latency=7.99s |...`, which follows the line with its step."""
        self.is_seen = True
        values, fields, raw, bad = pairs(line, body.strip().strip("|").replace("|", ", "))
        held, self.held = self.held, None
        iteration = held[1] if held else None
        if held:
            self.lines.append(held[0])
            values, fields, raw = {**held[2], **values}, held[3] + fields, held[4] + raw
        return self._with_timers(line, iteration, values, fields, raw) + bad

    def _with_timers(
        self, line: int, iteration: int | None, values: dict[str, float], fields: list[Field], raw: list[str]
    ) -> list[Record]:
        """Separate the parts of a step from the step."""
        names = ("generate", "training", "gather", "others")
        timers = {name: values.pop(name) for name in names if name in values}
        self.iteration = iteration
        records = [Record("step", line, values, iteration=iteration, fields=tuple(fields), raw=tuple(raw))]
        records[0].also, self.lines = tuple(at for at in self.lines if at != line), []
        if timers:
            records.append(Record("timers", line, timers, iteration=iteration))
        return records

    def _latency_new(self, line: int, part: str, body: str) -> list[Record]:
        """Read `End-to-End => Latency: 13.81s, ...`, which follows the line with its step.

        A log that begins in the middle of a step, or that another script printed, has it in front of this line.
        """
        self.is_seen = True
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
                if unit == "ms" or (unit == "s" and key.strip() != "Latency"):
                    name, scale = f"{name}_s", 1e-3 if unit == "ms" else 1.0
                values[name] = normal(value, scale)
                fields.append(Field(name, f"{part} {key.strip()}", unit, scale))
                raw.append(number[0])
        held = self.held
        if held is not None and (part == "End-to-End" or self.is_joined):
            self.is_joined = True
            self.lines.append(line)
            held[2].update(values)
            held[3].extend(fields)
            held[4].extend(raw)
            return []
        if part == "End-to-End":
            records = self.flush()
            self.latency = (line, values, fields, raw)
            self.lines.append(line)
            return records
        if self.latency:
            self.lines.append(line)
            self.latency[1].update(values)
            self.latency[2].extend(fields)
            self.latency[3].extend(raw)
        return []

    def _rlhf(self, line: int, body: str, match: re.Match[str]) -> list[Record]:
        self.is_seen = True
        values: dict[str, float] = {}
        fields: list[Field] = []
        raw: list[str] = []
        bad: list[Record] = []
        for cell in split_cells(body[match.end() :]):
            if cell.value is None:
                bad.append(unread(line, "not a number: the line is truncated or damaged", f"{cell.key}: {cell.text}"))
                continue
            field = field_for(cell.key)
            values[field.name] = cell.value
            fields.append(field)
            raw.append(cell.text)
        records = self.flush() if self.held else []
        if not values:
            return records + bad
        if self.latency:
            _, more, more_fields, more_raw = self.latency
            self.latency = None
            merged = self._with_timers(line, int(match[2]), {**values, **more}, fields + more_fields, raw + more_raw)
            return records + merged + bad
        self.held, self.is_joined = (line, int(match[2]), values, fields, raw), False
        return records + bad

    def close(self) -> list[Record]:
        """Return the step whose latencies have been printed; other lines follow."""
        return self.flush() if self.is_joined else []

    def flush(self) -> list[Record]:
        """Return a step of which only one line was printed."""
        records: list[Record] = []
        if self.held:
            line, iteration, values, fields, raw = self.held
            self.held, self.is_joined = None, False
            records += self._with_timers(line, iteration, values, fields, raw)
        if self.latency:
            line, values, fields, raw = self.latency
            self.latency = None
            records += self._with_timers(line, None, values, fields, raw)
        return records


def _last_word(piece: str) -> tuple[str, str, str]:
    parts = piece.rsplit(" ", 2)
    if len(parts) == 2 and parts[1][:1].isdigit():
        return parts[0], "", parts[1]
    return (parts[0], "", " ".join(parts[1:])) if len(parts) == 3 else (piece, "", "")


def _new_name(part: str, key: str) -> str | None:
    if key == "Latency":
        return {"End-to-End": "step_time_s", "Generation": "generate", "Training": "training"}[part]
    if key == "Samples/sec":
        return "samples_per_s"
    name = slug(part) + "_" + slug(key)
    if key == "TFLOPs":
        return "flops_per_gpu" if part == "End-to-End" else slug(part) + "_flops_per_gpu"
    return {"Batch Size": "global_batch_size", "Total Seq. Length": "sequence_length"}.get(key, name)
