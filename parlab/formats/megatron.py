"""Megatron-LM 1.x, 2.x, core and its forks, Megatron-DeepSpeed among them.

Source: megatron/training.py (training_log), megatron/timers.py, arguments.py of these versions. Elapsed time is in ms,
in BigScience's fork since 2022 in s: the key says. `MB` of the memory line is 2**20 bytes. Timers nest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from parlab.formats.cells import AVERAGE, Cell, Layout, Layouts, numbers, split_cells
from parlab.formats.endings import ending
from parlab.formats.launch import MAX_ARGUMENTS, command_arguments, is_command, typed
from parlab.formats.peel import peel_line
from parlab.formats.quantities import LARGEST, MIB, field_for, normal, slug, to_float, to_int
from parlab.formats.records import Field, Record, unread
from parlab.formats.sniff import Signs

SIGNS: Signs = (
    (re.compile(r"\biteration\s+\d+\s*/\s*\d+ *\|"), 10),
    (re.compile(r"^-{3,} (?:end of )?arguments -{3,}\s*$"), 10),
    (re.compile(r"^\s*time \(ms\) \|"), 4),
    (re.compile(r"\(min, max\) time across ranks \(ms\)|^\s*times across ranks \(ms\)"), 6),
    (re.compile(r"^\s+[a-z][a-z-]+ \.{3,}: \([\d.]+, [\d.]+\)"), 3),
    (re.compile(r"after \d+ iterations\)? memory \(MB\)"), 4),
    (re.compile(r"^\s*Job ID: ?\S*\s+# GPUs: \d+"), 8),
)

_KNOWN = {
    "throughput per GPU (TFLOP/s/GPU)": Field("flops_per_gpu", "", "TFLOP/s/GPU", 1e12),
    "TFLOPs": Field("flops_per_gpu", "", "TFLOP/s", 1e12),
    "tflops": Field("flops_per_gpu", "", "TFLOP/s", 1e12),
    "samples per second": Field("samples_per_s", "", "samples/s"),
    "tokens per second": Field("tokens_per_s", "", "tokens/s"),
    "tokens-per-second-per-gpu": Field("tokens_per_s_per_gpu", "", "tokens/s"),
    "number of skipped iterations": Field("skipped_iterations", ""),
    "number of nan iterations": Field("nan_iterations", ""),
    "energy per GPU (J/iter/GPU)": Field("energy_per_iteration_joules", "", "J"),
    "power per GPU (W/GPU)": Field("power_watts", "", "W"),
}


def cell_field(key: str) -> Field:
    """Name a cell of the iteration line."""
    base = key.removesuffix(AVERAGE)
    known = _KNOWN.get(base)
    if known is not None:
        return known._replace(key=key, name=known.name + ("_average" if base != key else ""))
    if base.startswith("elapsed time per iteration"):
        field = field_for(base)
        return field._replace(key=key, name="step_time_s" if base == key else "step_time_average_s")
    return field_for(key)


def timer_field(key: str) -> Field:
    """Name a timer; Megatron prints all of them in ms."""
    return Field(key.replace(" ", "-"), key, "ms", 1e-3)


def memory_field(key: str) -> Field:
    """Name a figure of the memory line."""
    return Field(slug(key.removeprefix("mem-").removesuffix("-bytes")) + "_bytes", key, "MB", MIB)


_STARTS = re.compile(
    r"(?=\biteration\s+\d+\s*/\s*\d+ *\|)|(?=\btime \(ms\) \|)|(?=\[Rank \d{1,7}\])|(?=\(min, max\) time across)"
    r"|(?=\bvalid(?:ation)? loss at )|(?=(?<![\])] )(?<!\()\bafter \d+ iterations memory \(MB\))"
)
_ITERATION = re.compile(r"iteration\s+(\d{1,18})\s*/\s*(\d{1,18}) *\|")
_MEMORY = re.compile(r"(?:\[Rank (\d{1,7})\] )?\(?after (\d{1,18}) iterations\)? memory \((\w+)\) \|")
_VALIDATION = re.compile(r"valid\w* loss at (?:iteration (\d{1,18})|([^|]{1,80}?)) *(?:on [^|]{0,80})?\|")
_RANGE = re.compile(r"\s*([\w/.-][\w/ .-]{0,78}?) \.*: \(([^,()]{1,30}), ([^,()]{1,30})\)")
_RANK_TIME = re.compile(r"\s*rank\s+(\d{1,7}): (\S{1,30})\s*$")
_TIMER_HEAD = re.compile(r"\s{2,}([\w/][\w/ .-]{0,78}):\s*$")
_ARGUMENT = re.compile(r"\s*([A-Za-z_][\w-]{0,120})(?: ?\.+(?:\s|$)| {2,})(.*)")
_DUMP = re.compile(r"\s*-{3,} arguments -{3,}\s*$")
_DUMP_END = re.compile(r"\s*-{3,} end of arguments -{3,}")
_WORLD = re.compile(r"using world size: (\d{1,9})(.*)")
_SIZE = re.compile(r"([a-z]+)(?:-model)?-parallel[- ]size: (\d{1,9})")
_CONSTANT = re.compile(r"setting number of micro-?batches to constant (\d{1,9})")
_PARAMETERS = re.compile(r"number of parameters on .{0,60}rank \(?([\d, ]{1,40})\)?: (\d{1,18})")
_FLOPS = re.compile(r"Effective Tera Flops per GPU: (\S{1,30}) and total parameters (\S{1,30}) B")
_BILLIONS = re.compile(r"Total number of parameters in billions: (\S{1,30})")
_PROGRESS = re.compile(r"\s*Job ID: ?(\S{0,80})\s+# GPUs: (\d{1,9})\s+(.*)")
_FAST_RANGE = re.compile(r" {2,8}([\w/-]{1,80}) \.{2,80}: \(([\d.]{1,20}), ([\d.]{1,20})\)\s*\Z")
_MARKS = ("world size", "micro", "Tera Flops", "billions", "number of parameters", "# GPUs:")
_MAX_WRAP = 5
_MAX_TIMERS = 1_000


class Parser:
    """Reads Megatron's lines one by one; keeps only what a block still owes."""

    def __init__(self) -> None:
        self.steps = Layouts(r"\s*iteration\s+(\d{1,18})\s*/\s*(\d{1,18}) *\|", cell_field, closed=True)
        self.timers = Layouts(r"\s*time \(ms\) \|", timer_field, closed=False)
        self.dump: dict[str, object] | None = None
        self.dump_at = 0
        self.block: Record | None = None
        self.timer: str | None = None
        self.wrapped: list[str] = []
        self.wrapped_at: tuple[int, int | None, str | None] = (0, None, None)
        self.iteration: int | None = None

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line; an empty list means that it is nothing of Megatron's."""
        if self.wrapped:
            return self._unwrap(line, rank, time, text)
        if self.dump is not None:
            return self._argument(line, text)
        if "iteration" in text or " (ms)" in text or "loss at" in text:
            found: list[Record] = []
            before = self.block
            for part in _STARTS.split(text):
                if part and not part.isspace():
                    found += self._part(line, rank, time, part.strip("\n"))
            if found or self.wrapped or self.block is not before:
                return found
        if self.block is not None or ": (" in text:
            timer = self._block_line(line, text)
            if timer is not None:
                return timer
        return self._launch_line(line, rank, time, text)

    @property
    def owes_lines(self) -> bool:
        """Tell whether the next line may belong to a wrapped iteration or an argument dump."""
        return self.dump is not None or bool(self.wrapped)

    def finish(self) -> list[Record]:
        """Give out what a cut file left open."""
        found = self.close_block()
        if self.wrapped:
            found += self._flush_wrapped()
        if self.dump:
            found.append(self._launch())
        return found

    def _part(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        match = _ITERATION.match(text)
        if match:
            if not text.rstrip().endswith("|"):
                self.wrapped, self.wrapped_at = [text.rstrip("\r\n")], (line, rank, time)
                return self.close_block()
            return self.close_block() + self._step(line, rank, time, text, match)
        if text.startswith("time (ms) |"):
            return self.close_block() + self._timers(line, rank, time, text)
        match = _MEMORY.match(text)
        if match:
            return self.close_block() + self._memory(line, rank, text, match)
        match = _VALIDATION.search(text)
        if match:
            return self.close_block() + self._validation(line, rank, text, match)
        if text.startswith("(min, max) time across ranks (ms)") or text.strip() == "times across ranks (ms):":
            found = self.close_block()
            self.block = self._new_block(line)
            return found
        return []

    def _step(
        self, line: int, rank: int | None, time: str | None, text: str, match: re.Match[str], *, cut: bool = False
    ) -> list[Record]:
        cells = split_cells(text[match.end() :])
        found: list[Record] = []
        if cut and cells:
            found.append(unread(line, "the line ends inside this cell", f"{cells[-1].key}: {cells[-1].text}"))
            cells.pop()
        bad = [cell for cell in cells if cell.value is None]
        found += [unread(line, "not a finite number", f"{cell.key}: {cell.text}") for cell in bad]
        if not cells:
            return [*found, unread(line, "an iteration without any value", text)]
        if not bad and not cut:
            self.steps.learn(tuple(cell.key for cell in cells))
        self.iteration = int(match[1])
        return [_step_record(line, rank, time, int(match[1]), int(match[2]), cells), *found]

    def _timers(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        cells = split_cells(text.partition("|")[2])
        found = [unread(line, "timer without a finite number", f"{c.key}: {c.text}") for c in cells if c.value is None]
        good = [cell for cell in cells if cell.value is not None]
        if len(good) > 1 and _digits(good[-1].text) < min(_digits(cell.text) for cell in good[:-1]):
            found.append(unread(line, "the line ends inside this number", f"{good[-1].key}: {good[-1].text}"))
            good.pop()
        elif not found:
            self.timers.learn(tuple(cell.key for cell in good))
        return [*_timer_record(line, rank, time, self.iteration, good), *found]

    def _memory(self, line: int, rank: int | None, text: str, match: re.Match[str]) -> list[Record]:
        cells = [cell for cell in split_cells(text[match.end() :]) if cell.value is not None]
        if not cells:
            return [unread(line, "a memory line without any number", text)]
        speaker = int(match[1]) if match[1] else rank
        fields = tuple(memory_field(cell.key) for cell in cells)
        values = {field.name: normal(cell.value or 0.0, field.scale) for field, cell in zip(fields, cells, strict=True)}
        raw = tuple(cell.text for cell in cells)
        return [Record("memory", line, values, iteration=int(match[2]), rank=speaker, fields=fields, raw=raw)]

    def _validation(self, line: int, rank: int | None, text: str, match: re.Match[str]) -> list[Record]:
        cells = [cell for cell in split_cells(text[match.end() :]) if cell.value is not None]
        if not cells:
            return [unread(line, "a validation line without any number", text)]
        fields = tuple(_validation_field(cell.key) for cell in cells)
        values = {field.name: cell.value or 0.0 for field, cell in zip(fields, cells, strict=True)}
        raw = tuple(cell.text for cell in cells)
        iteration = int(match[1]) if match[1] else self.iteration
        return [Record("validation", line, values, iteration=iteration, rank=rank, fields=fields, raw=raw)]

    def _new_block(self, line: int) -> Record:
        return Record("timers", line, {}, iteration=self.iteration, low={})

    def close_block(self) -> list[Record]:
        block, self.block, self.timer = self.block, None, None
        return [block] if block is not None and block.values else []

    def _block_line(self, line: int, text: str) -> list[Record] | None:
        """Read one line of the newer timers; None ends the block."""
        match = _RANGE.match(text)
        if match:
            low, high = to_float(match[2]), to_float(match[3])
            if low is None or high is None:
                return [unread(line, "timer without a finite number", text)]
            if self.block is None:
                self.block = self._new_block(line)
            name = match[1].strip().replace(" ", "-")
            if len(self.block.values) < _MAX_TIMERS and self.block.low is not None:
                self.block.values[name] = high / 1000.0
                self.block.low[name] = low / 1000.0
            return []
        if self.block is None:
            return None
        match = _RANK_TIME.match(text)
        if match and self.timer:
            value = to_float(match[2])
            if value is None:
                return [unread(line, "timer without a finite number", text)]
            cell = Cell(self.timer, match[2], value)
            return _timer_record(line, int(match[1]), None, self.iteration, [cell])
        match = _TIMER_HEAD.match(text)
        if match:
            self.timer = match[1].strip()
            return []
        return None

    def _launch_line(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        found = self.close_block() if self.block is not None else []
        if text.isspace():
            return found
        if "arguments" in text and _DUMP.match(text):
            self.dump, self.dump_at = {}, line
            return found
        if any(mark in text for mark in _MARKS):
            stated = _stated(line, time, text, self.iteration)
            if stated:
                return found + stated
        if is_command(text) and (arguments := command_arguments(text)):
            return [*found, Record("launch", line, data=arguments)]
        end = ending(text)
        return [*found, Record("end", line, data=end, time=time, rank=rank)] if end else found

    def _argument(self, line: int, text: str) -> list[Record]:
        """Read one line inside the argument dump."""
        assert self.dump is not None
        if _DUMP_END.match(text):
            return [self._launch()]
        if _ITERATION.search(text):
            record = self._launch()
            return [record, *self.feed(line, None, None, text)]
        match = _ARGUMENT.match(text)
        if match and len(self.dump) < MAX_ARGUMENTS:
            self.dump.setdefault(match[1].rstrip("."), typed(match[2]))
            return []
        if _DUMP.match(text) or not text.strip(" .\n\r") or text.lstrip().startswith(("[", ">", "using", "*")):
            return []
        return [unread(line, "no argument: expected `name ..... value`", text)]

    def _launch(self) -> Record:
        arguments, self.dump = self.dump, None
        return Record("launch", self.dump_at, data=arguments or {}, opens=True)

    def _unwrap(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Join the lines of an iteration that was wrapped; give up at the next record."""
        starts = _STARTS.split(text)
        head = starts[0] if starts else ""
        if head.strip() and "|" in head:
            self.wrapped.append(head.rstrip("\r\n"))
            rest = text[len(head) :]
            if head.rstrip().endswith("|") or len(self.wrapped) > _MAX_WRAP or rest:
                return self._flush_wrapped() + (self.feed(line, rank, time, rest) if rest else [])
            return []
        return self._flush_wrapped() + self.feed(line, rank, time, text)

    def _flush_wrapped(self) -> list[Record]:
        line, rank, time = self.wrapped_at
        text = " ".join(self.wrapped)
        self.wrapped = []
        match = _ITERATION.match(text)
        if match is None:
            return []
        return self._step(line, rank, time, text, match, cut=not text.rstrip().endswith("|"))


def _stated(line: int, time: str | None, text: str, iteration: int | None) -> list[Record]:
    """Read a remark about the launch: its sizes, its parameters, a line of progress.txt."""
    if match := _WORLD.search(text):
        return [Record("launch", line, data=_world(match), opens=True)]
    if match := _CONSTANT.search(text):
        return [Record("launch", line, data={"num_micro_batches": int(match[1])})]
    if match := _FLOPS.search(text):
        flops = ("flops_per_gpu", "Effective Tera Flops per GPU", match[1], "TFLOP/s", 1e12)
        return _metrics(line, iteration, flops, ("parameters", "total parameters", match[2], "B", 1e9))
    if match := _BILLIONS.search(text):
        return _metrics(line, None, ("parameters", "Total number of parameters in billions", match[1], "B", 1e9))
    if match := _PARAMETERS.search(text):
        return _metrics(line, None, ("parameters_per_rank", "number of parameters", match[2], "", 1.0))
    if match := _PROGRESS.match(text):
        return _progress(line, time, match)
    return []


def _world(match: re.Match[str]) -> dict[str, object]:
    """Read `using world size: 64 and model-parallel size: 4` and its longer successors."""
    names = {"data": "data_parallel_size", "model": "model_parallel_size"}
    sizes = {names.get(kind, f"{kind}_model_parallel_size"): int(size) for kind, size in _SIZE.findall(match[2])}
    return {"world_size": int(match[1]), **sizes}


def _digits(text: str) -> int:
    return len(text.partition(".")[2])


def _validation_field(key: str) -> Field:
    """Name `lm loss value` and `lm loss PPL`: lm_loss, lm_loss_ppl."""
    return Field(slug(key.removesuffix(" value")), key)


def _step_record(
    line: int, rank: int | None, time: str | None, iteration: int, total: int, cells: list[Cell]
) -> Record:
    good = [cell for cell in cells if cell.value is not None]
    fields = tuple(cell_field(cell.key) for cell in good)
    values = {field.name: normal(cell.value or 0.0, field.scale) for field, cell in zip(fields, good, strict=True)}
    values["total_iterations"] = float(total)
    raw = tuple(cell.text for cell in good)
    return Record("step", line, values, iteration=iteration, rank=rank, time=time, fields=fields, raw=raw)


def _timer_record(
    line: int, rank: int | None, time: str | None, iteration: int | None, cells: list[Cell]
) -> list[Record]:
    if not cells:
        return []
    fields = tuple(timer_field(cell.key) for cell in cells)
    values = {field.name: (cell.value or 0.0) / 1000.0 for field, cell in zip(fields, cells, strict=True)}
    raw = tuple(cell.text for cell in cells)
    return [Record("timers", line, values, iteration=iteration, rank=rank, time=time, fields=fields, raw=raw)]


def _metrics(line: int, iteration: int | None, *figures: tuple[str, str, str, str, float]) -> list[Record]:
    good = [(Field(name, key, unit, scale), text, to_float(text)) for name, key, text, unit, scale in figures]
    values = {field.name: value * field.scale for field, _, value in good if value is not None}
    if not values:
        return []
    fields, raw = tuple(f for f, _, v in good if v is not None), tuple(t for _, t, v in good if v is not None)
    return [Record("metrics", line, values, iteration=iteration, fields=fields, raw=raw)]


def _progress(line: int, time: str | None, match: re.Match[str]) -> list[Record]:
    """Read one line of progress.txt (megatron-core: append_to_progress_log)."""
    cells = [part.partition(":") for part in match[3].split("\t")]
    launch = Record("launch", line, data={"world_size": int(match[2]), "job_id": match[1]}, time=time)
    launch.opens = match[3].startswith("Starting job")
    values: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    iteration: int | None = None
    for label, colon, text in cells:
        key, number = label.strip(), text.strip().split(" ")[0]
        value = to_float(number)
        if not colon or value is None:
            continue
        if key == "Iteration":
            iteration = to_int(number)
            continue
        unit = text.strip().partition(" ")[2] or ("TFLOP/s/GPU" if "TFLOP/s/GPU" in key else "")
        scale = 1e12 if "TFLOP/s" in unit + key else 1.0
        name = slug(key.partition("(")[0]) + ("_flops_per_gpu" if scale != 1.0 else "")
        field = Field(name.replace("throughput_", ""), key, unit, scale)
        values[field.name] = value * scale
        fields.append(field)
        raw.append(text.strip())
    found = [launch]
    if values:
        found.append(Record("metrics", line, values, iteration=iteration, fields=tuple(fields), raw=tuple(raw)))
    return found


def _fast_step(line: int, rank: int | None, time: str | None, layout: Layout, match: re.Match[str]) -> Record | None:
    texts = match.groups()
    raw = texts[2:]
    values = numbers(layout, raw)
    if values is None:
        return None
    values["total_iterations"] = float(texts[1])
    return Record("step", line, values, int(texts[0]), rank, time, layout.fields, raw)


def _fast_timers(
    line: int, rank: int | None, time: str | None, iteration: int | None, layout: Layout, match: re.Match[str]
) -> Record | None:
    raw = match.groups()
    try:
        values = [float(text) / 1000.0 for text in raw]
    except ValueError:
        return None
    if not -LARGEST < sum(values) < LARGEST:
        return None
    named = dict(zip(layout.names, values))  # noqa: B905 - as many groups as names, and this is the hot loop
    return Record("timers", line, named, iteration, rank, time, layout.fields, raw)


def _fast_range(block: Record, text: str) -> bool:
    """Add a line `    name ....: (min, max)` to its block; False for any other line."""
    match = _FAST_RANGE.match(text)
    if match is None or block.low is None or len(block.values) >= _MAX_TIMERS:
        return False
    name, low, high = match.groups()
    try:
        block.low[name], block.values[name] = float(low) / 1000.0, float(high) / 1000.0
    except ValueError:
        return False
    return True


class LineParser(Protocol):
    """A parser that is fed what Megatron's leaves over."""

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]: ...

    def finish(self) -> list[Record]: ...


def _fast(parser: Parser, line: int, rank: int | None, time: str | None, text: str) -> Record | None:
    """Read an iteration or timer line of a layout that is known; None for any other line."""
    layouts = parser.timers if text.startswith("time") else parser.steps
    for index, layout in enumerate(layouts.known):
        match = layout.match(text)
        if match is None:
            continue
        if index:
            layouts.prefer(index)
        if layouts is parser.timers:
            return _fast_timers(line, rank, time, parser.iteration, layout, match)
        record = _fast_step(line, rank, time, layout, match)
        if record is not None:
            parser.iteration = record.iteration
        return record
    return None


def read(lines: Iterable[str], *, also: LineParser | None = None) -> Iterator[Record]:
    """Read a log of Megatron-LM; yields launches, steps, timers, memory, validation and how it ended.

    A line of a known layout, which most are, is read as it stands; all others are peeled first.
    """
    parser = Parser()
    for number, raw in enumerate(lines, 1):
        if parser.block is None and parser.dump is None and not parser.wrapped:
            record = _fast(parser, number, None, None, raw)
            if record is not None:
                yield record
                continue
        for line, rank, time, text in peel_line(number, raw):
            if parser.block is not None and _fast_range(parser.block, text):
                continue
            if not parser.owes_lines and (record := _fast(parser, line, rank, time, text)) is not None:
                yield from parser.close_block()
                yield record
                continue
            found = parser.feed(line, rank, time, text)
            if also is not None and not found and not parser.owes_lines:
                found = also.feed(line, rank, time, text)
            yield from found
    yield from parser.finish()
    if also is not None:
        yield from also.finish()
