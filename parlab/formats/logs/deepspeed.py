"""DeepSpeed: lines of the engine in all versions, and RLHF lines of DeepSpeed-Chat.

Source: deepspeed/utils/timer.py and logging.py, runtime/engine.py, runtime/pipe/engine.py, runtime/fp16/loss_scaler.py,
and applications/DeepSpeed-Chat. Throughput is over all ranks; `GB` of these lines is 2**30 bytes; `skipped` counts from
the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.prefixes import STAMP, peel, spliced, strip_prefix
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Kind, Record
from parlab.formats.grammar.repeats import Repeats
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import GIB, slug, to_float, unit_of
from parlab.formats.launch import command_arguments, is_command
from parlab.formats.logs.deepspeed_chat import Chat
from parlab.formats.logs.deepspeed_config import Printed
from parlab.formats.logs.deepspeed_records import breakdown, cells, figures
from parlab.formats.tools.deepspeed_comms import SIGNS as COMMS_SIGNS
from parlab.formats.tools.deepspeed_comms import Comms

SIGNS: Signs = (
    (re.compile(r"SamplesPerSec="), 10),
    (re.compile(r"^\[(?:INFO|WARNING|DEBUG)\] \[\w+\.py:\d+:\w+\]"), 6),
    (re.compile(r"\b(?:forward|fwd|backward|bwd|step)_microstep: "), 10),
    (re.compile(r"^\s*steps: \d+ loss: \S+ iter time \(s\):"), 10),
    (re.compile(r"\|E2E latency=|^End-to-End => Latency:"), 10),
    (re.compile(r"^\s*[Ee]poch: \d+ ?\| ?[Ss]tep: \d+ ?\|"), 4),
    (re.compile(r"^-{5,} DeepSpeed Flops Profiler -{5,}"), 6),
    (re.compile(r"\bOVERFLOW! (?:Rank \d+ )?Skipping step"), 4),
    *COMMS_SIGNS,
)

_TAG = re.compile(r"\s*(?:\[(?:INFO|WARNING|DEBUG|ERROR)\] )?(?:\[[\w.-]+\.py:\d+:\w+\] )?(?:\[Rank (-?\d{1,7})\] )?")
_START = re.compile(
    rf"{STAMP}(?:\[[A-Z]{{4,7}}\] \[[\w.-]{{1,60}}\.py:\d{{1,6}}:\w{{1,60}}\] (?:\[Rank -?\d{{1,7}}\] )?"
    r"(?:steps: \d{1,18} loss: )?|steps: \d{1,18} loss: )"
)
_THROUGHPUT = re.compile(
    r"(?:epoch=(?P<epoch>\d{1,12})/micro_step=(?P<micro>\d{1,18})/global_step=(?P<step>\d{1,18})"
    r"|(?P<old_epoch>\d{1,12})/(?P<old>\d{1,18})), (?=\w*SamplesPerSec=)"
)
# Signs of lines that are read independently of the lines before them.
_PLAIN = ("SamplesPerSec=", ", skipped=", "time (ms) |", " iter time (s):")
_STEP = re.compile(r"step=(\d{1,18}), skipped=(\d{1,18}), lr=\[([^\]]{0,400})\](?:, mom=(.*))?")
_GROUP = re.compile(r"[\[(]([^\[\]()]{1,200})[\])]")
_MOMENTA = (("momentum",), ("beta1", "beta2"))
_PIPELINE = re.compile(r"\s*steps: (\d{1,18}) loss: (\S{1,30}) iter time \(s\): (\S{1,30}) samples/sec: (\S{1,30})")
_OVERFLOW = re.compile(r"(?i:overflow)! (?:Rank (\d{1,7}) )?Skipping step\. Attempted loss scale: ([\d.e+]{1,30})")
_MEMORY = re.compile(r"\bMA (\S{1,20}) GB\s+Max_MA (\S{1,20}) GB\s+CA (\S{1,20}) GB\s+Max_CA (\S{1,20}) GB")
# Of DeepSpeed-Chat's first two steps: `Model Parameters: 1.316 B, Latency: 0.36s, TFLOPs: 40.2, ...`.
_MODEL = re.compile(
    r"\s*Model Parameters: [\d.]{1,12} B, Latency: ([\d.]{1,12})s, TFLOPs: ([\d.]{1,12}), Samples/sec: ([\d.]{1,12})\b"
)
_REWARD = re.compile(r"\s*[Aa]verage reward score: (\S{1,30})")
_PERPLEXITY = re.compile(r"\s*ppl: (\S{1,30})(?:, loss: (\S{1,30}))?\s*$")
_CONFIG_TAG = re.compile(r"\[config\.py:\d+:print")
# The profile of a step, as `flops_profiler` prints it.
_PROFILE = re.compile(
    r"\s*(?P<key>(?:fwd|bwd|step|iter) latency|samples/second|FLOPS per GPU|fwd FLOPS per GPU|bwd FLOPS per GPU"
    r"|fwd\+bwd FLOPS per GPU)(?: = [^:]{1,80})?:\s{1,80}(?P<value>[\d.]{1,20}) ?(?P<unit>[mu]?s|[KMGTP]?FLOPS)?\s*$"
)
_PROFILED = re.compile(
    r"\s*(?P<key>world size|data parallel size|model parallel size|batch size per GPU):\s{8,80}(\d{1,9})\s*$"
)
_PROFILE_SETTINGS = {
    "world size": "world_size",
    "data parallel size": "data_parallel_size",
    "model parallel size": "tensor_model_parallel_size",
    "batch size per GPU": "micro_batch_size",
}
_FLOPS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCRIPT = re.compile(r"\s*(\d{1,9}) (\d{1,18}) ([a-z_]{2,40}) - (\S{1,30})\s*$")


# Of a line of the pipeline engine.
_COLUMNS = (("loss", "loss", ""), ("step_time_s", "iter time (s)", "s"), ("samples_per_s", "samples/sec", "samples/s"))


class Parser:
    """Reads lines of DeepSpeed one by one."""

    def __init__(self) -> None:
        self.chat = Chat()
        self.comms = Comms()
        self.printed = Printed()
        self.repeats = Repeats(self._plain)

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line; the list is empty for a line that is not from DeepSpeed."""
        if self.printed.json is not None:
            return self.printed.json_line(line, text)
        is_plain = any(sign in text for sign in _PLAIN) and not self.chat.is_seen and not self.printed.arguments
        if not is_plain:
            return self._parts(line, rank, time, text)
        records = self.repeats.read(line, rank, time, text)
        for record in records:
            if record.kind == "step":
                self.chat.iteration = record.iteration
                # `step=0` is printed when the optimizer is created, before the first step.
                record.kind = "step" if record.iteration else "metrics"
            elif record.kind == "timers" and record.iteration is None:
                record.iteration = self.chat.iteration
        return records

    def _plain(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line independently of the lines before it."""
        iteration, self.chat.iteration = self.chat.iteration, None
        records = self._parts(line, rank, time, text)
        self.chat.iteration = iteration
        for record in records:
            record.kind = "step" if record.kind == "metrics" and record.iteration is not None else record.kind
        return records

    def _parts(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        parts = spliced(_START, text)
        if len(parts) == 1:
            return self._record(line, rank, time, text)
        return [record for part in parts for record in self._record(line, rank, time, strip_prefix(part)[2])]

    def _record(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        tag = _TAG.match(text)
        body = text[tag.end() :].rstrip("\r\n") if tag else text
        speaker = int(tag[1]) if tag and tag[1] else rank
        if _CONFIG_TAG.search(text[:80]):
            self.printed.line(body)
            return []
        records = self.printed.close(line)
        communication, is_comms = self.comms.feed(line, speaker, body)
        records += communication
        if is_comms:
            return records
        if "SamplesPerSec=" in body or "=> " in body or "step" in body or "Step" in body:
            records += self._step_line(line, speaker, time, body)
        elif " | " in body and "time (ms) |" in body:
            records += breakdown(line, speaker, body, self.chat.iteration)
        else:
            records += self._other(line, speaker, time, body)
        return records

    @property
    def goes_on(self) -> bool:
        """Whether lines without a tag may belong to what is being printed: the configuration, or a table."""
        return bool(self.printed.json or self.printed.arguments) or self.comms.is_open

    def finish(self) -> list[Record]:
        """Return the open records at the end of the file."""
        return self.printed.close(0) + self.comms.close() + self.chat.flush()

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
        chat_records = self.chat.feed(line, body)
        if chat_records is not None:
            return chat_records
        if "microstep: " in body or "time (ms) |" in body:
            return breakdown(line, rank, body, self.chat.iteration)
        match = _OVERFLOW.search(body)
        if match:
            scale = to_float(match[2])
            values = {} if scale is None else {"overflow_loss_scale": scale}
            field = Field("overflow_loss_scale", "Attempted loss scale")
            speaker = int(match[1]) if match[1] else rank
            attempted = Record("metrics", line, values, rank=speaker, time=time, fields=(field,), raw=(match[2],))
            return [attempted, Record("event", line, data="overflow")]
        return self._other(line, rank, time, body)

    def _other(self, line: int, rank: int | None, time: str | None, body: str) -> list[Record]:
        match = _MEMORY.search(body)
        if match:
            names = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes")
            return figures("memory", line, None, rank, None, zip(names, match.groups(), strict=True), "GB", GIB)
        if (match := _PROFILE.match(body)) or (match := _PROFILED.match(body)):
            return _profile(line, rank, match)
        if (match := _MODEL.match(body)) is not None:
            profiled = zip(("step_time_s", "flops_per_gpu", "samples_per_s"), match.groups(), strict=True)
            records = figures("metrics", line, None, rank, time, profiled)
            for record in records:
                if "flops_per_gpu" in record.values:
                    record.values["flops_per_gpu"] *= 1e12
            return records
        match = _REWARD.match(body)
        if match:
            return self.chat.close() + figures("metrics", line, None, rank, None, [("reward", match[1])])
        match = _PERPLEXITY.match(body)
        if match:
            read = [("perplexity", match[1])] + ([("loss", match[2])] if match[2] else [])
            return figures("validation", line, self.chat.iteration, rank, None, read)
        match = _SCRIPT.match(body)
        if match:
            name = slug(match[3]).replace("sample_per_sec", "samples_per_s")
            return figures("metrics", line, int(match[2]), rank, None, [(f"script_{name}", match[4])])
        if body.startswith("cmd = ") or is_command(body):
            arguments = command_arguments(body)
            return [Record("launch", line, data=arguments)] if arguments else []
        end = ending(body)
        return [Record("end", line, data=end, time=time, rank=rank)] if end else []

    def _throughput(
        self, line: int, rank: int | None, time: str | None, body: str, match: re.Match[str]
    ) -> list[Record]:
        records = self._step(line, int(match["step"] or match["old"]), rank, time, cells(body[match.end() :]))
        if match["step"] and records and records[0].kind != "unread":
            records[0].values |= {"epoch": float(match["epoch"]), "micro_step": float(match["micro"])}
        return records

    def _step(
        self, line: int, iteration: int, rank: int | None, time: str | None, named: list[tuple[Pair, Field]]
    ) -> list[Record]:
        """Return a step; within RLHF the counts of the engines are not iterations and become metrics."""
        # `step=0` is printed when the optimizer is created, before the first step.
        kind: Kind = "metrics" if self.chat.is_seen or iteration == 0 else "step"
        records = record_of(kind, line, rank, iteration, named, time)
        if not self.chat.is_seen:
            self.chat.iteration = iteration
            return records
        for record in records:
            values = record.values.items()
            record.values = {f"engine_{name}" if name.endswith("per_s") else name: value for name, value in values}
        return records

    def _log_dist(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        named = [(Pair("skipped", match[2], "", float(match[2])), Field("skipped_total", "skipped"))]
        rates = _different(match[3].split(","))
        # Of each group of parameters, momentum, or in a list of its own the two betas of Adam.
        momenta = (match[4] or "").strip()
        groups = [group.split(",") for group in _GROUP.findall(momenta[1:-1]) or momenta.strip("[]").split(",")]
        betas = [_different(column) for column in zip_longest(*groups, fillvalue="")]
        lists = [("learning_rate", "lr", rates), *zip(_MOMENTA[len(betas) > 1], ("mom", "mom 1"), betas, strict=False)]
        for name, key, texts in lists:
            for group, text in enumerate(texts):
                field = Field(f"{name}_{group}" if group else name, f"{key} {group}" if group else key)
                if (value := to_float(text)) is not None:
                    named.append((Pair(field.key, text, "", value), field))
        return self._step(line, int(match[1]), rank, time, named)

    def _pipeline(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        named = [
            (Pair(key, text, unit, to_float(text)), Field(name, key, unit))
            for (name, key, unit), text in zip(_COLUMNS, match.groups()[1:], strict=True)
        ]
        return self._step(line, int(match[1]), rank, time, named)


def _different(texts: Iterable[str]) -> list[str]:
    """Return a value of each group of parameters; only the first one if all of them have it."""
    texts = [text.strip() for text in texts]
    return texts[:1] if len(set(texts)) == 1 else texts


def _profile(line: int, rank: int | None, match: re.Match[str]) -> list[Record]:
    """Read a line of the profile of a step: a figure of the launch, or one of its settings."""
    key = match["key"]
    if key in _PROFILE_SETTINGS:
        return [Record("launch", line, data={_PROFILE_SETTINGS[key]: int(match[2])}, rank=rank)]
    unit = match["unit"] or ""
    if unit.endswith("FLOPS"):
        scale, name = _FLOPS[unit.removesuffix("FLOPS")], f"{slug(key.partition(' FLOPS')[0])}_flops_per_gpu"
    else:
        base = unit_of(unit)
        scale, name = base[1] if base else 1.0, f"{slug(key)}_s"
    known = known_to("deepspeed").get(key)
    field = Field(name if known is None else known.quantity.name, key, unit, scale)
    return record_of("metrics", line, rank, None, [(Pair(key, match["value"], unit, to_float(match["value"])), field)])


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a log of the DeepSpeed engine; yields launches, steps, timers, memory, validation and how it ended."""
    parser = Parser()
    for line, rank, time, text in peel(lines):
        yield from parser.feed(line, rank, time, text)
    yield from parser.finish()
