"""Megatron-LM 1.x, 2.x, core and its forks, including Megatron-DeepSpeed.

Source: megatron/training.py (training_log), megatron/timers.py, arguments.py of these versions. Elapsed time is in ms,
in BigScience's fork since 2022 in s, as the key states. `MB` of the memory line is 2**20 bytes. Timers nest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from parlab.formats.grammar.cells import Layouts, cell, continues, joined, split_cells
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import Line, peel_line
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.launch import MAX_ARGUMENTS, command_arguments, is_command, typed
from parlab.formats.logs.megatron_blocks import TimerBlock
from parlab.formats.logs.megatron_launch import MARKS, stated
from parlab.formats.logs.megatron_records import (
    cell_field,
    fast_range,
    fast_step,
    fast_timers,
    memory_field,
    step_record,
    timer_field,
    timer_record,
    validation_field,
)

SIGNS: Signs = (
    (re.compile(r"\biteration\s+\d+\s*/\s*\d+ *\|"), 10),
    (re.compile(r"^-{3,} (?:end of )?arguments -{3,}\s*$"), 10),
    (re.compile(r"^\s*time \(ms\) \|"), 4),
    (re.compile(r"\(min, max\) time across ranks \(ms\)|^\s*times across ranks \(ms\)"), 6),
    (re.compile(r"^\s+[a-z][a-z-]+ \.{3,}: \([\d.]+, [\d.]+\)"), 3),
    (re.compile(r"after \d+ iterations\)? memory \(MB\)"), 4),
    (re.compile(r"^\s*Job ID: ?\S*\s+# GPUs: \d+"), 8),
)

_STARTS = re.compile(
    r"(?=\biteration\s+\d+\s*/\s*\d+ *\|)|(?=\btime \(ms\) \|)|(?=\[Rank \d{1,7}\])|(?=\(min, max\) time across)"
    r"|(?=\bvalid(?:ation)? loss at )|(?=(?<![\])] )(?<!\()\bafter \d+ iterations memory \(MB\))"
    r"|(?=\bStep Time ?: [\d.]+ ?s\b)"
)
_ITERATION = re.compile(r"iteration\s+(\d{1,18})\s*/\s*(\d{1,18}) *\|")
_MEMORY = re.compile(r"(?:\[Rank (\d{1,7})\] )?\(?after (\d{1,18}) iterations\)? memory \((\w+)\) \|")
_VALIDATION = re.compile(r"valid\w* loss at (?:iteration (\d{1,18})|([^|]{1,80}?)) *(?:on [^|]{0,80})?\|")
_ARGUMENT = re.compile(r"\s*([A-Za-z_][\w-]{0,120})(?: ?\.+(?:\s|$)| {2,})(.*)")
_DUMP = re.compile(r"\s*-{3,} arguments -{3,}\s*$")
_DUMP_END = re.compile(r"\s*-{3,} end of arguments -{3,}")
_MAX_WRAP = 5
_MAX_WRAPPED_TIMERS = 40
# The rest of a timer line that a terminal wrapped: cells, or the end of a key or of a number.
_WRAPPED_CELL = r"[\w\s/.-]{0,80}(?::\s{0,4}(?:\d[\d.]{0,20})?)?\s*"
_REST = re.compile(rf"(?=.{{0,400}}[:|]\s*\S|[\d.]{{1,20}}\s*\Z){_WRAPPED_CELL}(?:\|{_WRAPPED_CELL})*\Z")
# Megatron-Bridge prints time and rate of a step before the step itself.
_BRIDGE = re.compile(
    r"Step Time ?: (\d{1,12}(?:\.\d{1,12})?) ?s\s{1,8}"
    r"GPU utilization: (\d{1,12}(?:\.\d{1,12})?) ?(?:MODEL_)?TFLOP/s/GPU"
)
# GPT-NeoX prints cells before the iteration.
_BEFORE = re.compile(r"\s*samples/sec: (\S{1,30}) \|\s*\Z")
_SAME_TIME = 0.02
# Cells of forks that say when the whole run ends.
_CLOCKS = frozenset({"ETA", "eta", "remaining time"})
# No terminal wraps lines as short as this.
_SHORT = 40


def _digits(text: str) -> int:
    return len(text.partition(".")[2])


class Parser:
    """Reads Megatron-LM's lines one at a time; its state is limited to the current block."""

    def __init__(self) -> None:
        self.steps = Layouts(r"\s*iteration\s+(\d{1,18})\s*/\s*(\d{1,18}) *\|", cell_field, closed=True)
        self.timers = Layouts(r"\s*time \(ms\) \|", timer_field, closed=False)
        self.dump: dict[str, object] | None = None
        self.dump_at = 0
        self.block = TimerBlock()
        self.wrapped: list[str] = []
        self.wrapped_at: tuple[int, int | None, str | None] = (0, None, None)
        self.iteration: int | None = None
        self.rate: Record | None = None
        self.before: str | None = None

    def feed(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read one line; return [] for a line that yields no record."""
        if self.dump is not None:
            return self._argument(line, text)
        if "iteration" in text or " (ms)" in text or "loss at" in text or "Step Time" in text:
            results: list[Record] = []
            before = self.block.record
            for part in _STARTS.split(text):
                if part and not part.isspace():
                    results += self._flush_wrapped() if self.wrapped else []
                    results += self._part(line, rank, time, part.strip("\n"))
            if results or self.wrapped or self.block.record is not before:
                return results
        if self.block.record is not None or ": (" in text:
            timer = self.block.feed(line, self.iteration, text)
            if timer is not None:
                return timer
        return self._launch_line(line, rank, time, text)

    @property
    def expects_lines(self) -> bool:
        """Whether the next line may belong to a wrapped iteration or an argument dump."""
        return self.dump is not None or bool(self.wrapped)

    def finish(self) -> list[Record]:
        """Return the records that the end of the file leaves incomplete."""
        records = self.block.close()
        if self.wrapped:
            records += self._flush_wrapped()
        if self.dump:
            records.append(self._launch())
        if self.rate is not None:
            records.append(self.rate)
        return records

    def _part(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        match = _ITERATION.match(text)
        if match:
            self.wrapped, self.wrapped_at = [text.rstrip("\r\n")], (line, rank, time)
            return self.block.close()
        if text.startswith("time (ms) |"):
            if len(text) < _SHORT:
                return self.block.close() + self._timers(line, rank, time, text)
            self.wrapped, self.wrapped_at = [text.rstrip("\r\n")], (line, rank, time)
            return self.block.close()
        match = _BRIDGE.match(text)
        if match:
            return self.block.close() + self._stated_rate(line, rank, time, match)
        match = _BEFORE.match(text)
        if match:
            self.before = match[1]
            return []
        match = _MEMORY.match(text)
        if match and ":" not in text.rpartition("|")[2]:
            self.wrapped, self.wrapped_at = [text.rstrip("\r\n")], (line, rank, time)
            return self.block.close()
        if match:
            return self.block.close() + self._memory(line, rank, text, match)
        match = _VALIDATION.search(text)
        if match:
            return self.block.close() + self._validation(line, rank, text, match)
        if text.startswith("(min, max) time across ranks (ms)") or text.strip() == "times across ranks (ms):":
            closed = self.block.close()
            self.block.open(line, self.iteration)
            return closed
        return []

    def _step(
        self, line: int, rank: int | None, time: str | None, text: str, match: re.Match[str], *, cut: bool = False
    ) -> list[Record]:
        cells = split_cells(text[match.end() :])
        problems: list[Record] = []
        if self.before is not None:
            cells.insert(0, cell("samples per second", self.before))
        if cut and cells:
            problems.append(unread(line, "the line ends inside this cell", f"{cells[-1].key}: {cells[-1].text}"))
            cells.pop()
        cells = [cell for cell in cells if cell.value is not None or cell.key not in _CLOCKS]
        bad = [cell for cell in cells if cell.value is None]
        problems += [unread(line, "not a finite number", f"{cell.key}: {cell.text}") for cell in bad]
        if not cells:
            return [*problems, unread(line, "an iteration without any value", text)]
        if not bad and not cut and self.before is None:
            self.steps.learn(tuple(cell.key for cell in cells))
        self.iteration, self.before = int(match[1]), None
        return [step_record(line, rank, time, int(match[1]), int(match[2]), cells), *problems]

    def _stated_rate(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        """Keep the rate that Megatron-Bridge states before an iteration; return one that no iteration followed."""
        previous, fields = self.rate, (cell_field("elapsed time per iteration (s)"), cell_field("tflops"))
        values = {"step_time_s": float(match[1]), "flops_per_gpu": float(match[2]) * 1e12}
        self.rate = Record("metrics", line, values, rank=rank, time=time, fields=fields, raw=match.groups())
        return [previous] if previous is not None else []

    def attach(self, step: Record) -> list[Record]:
        """Add the stated rate to the step it precedes; return it if it belongs to another step."""
        rate, self.rate = self.rate, None
        if rate is None:
            return []
        seconds, stated_seconds = step.values.get("step_time_s"), rate.values["step_time_s"]
        if seconds is None or abs(seconds - stated_seconds) > _SAME_TIME * stated_seconds:
            return [rate]
        step.values.setdefault("flops_per_gpu", rate.values["flops_per_gpu"])
        step.fields, step.raw = (*step.fields, *rate.fields), (*step.raw, *rate.raw)
        step.also += (rate.line,)
        return []

    def _timers(self, line: int, rank: int | None, time: str | None, text: str, *, learn: bool = True) -> list[Record]:
        """Read a timer line; only whole lines are learnt, so that a part of a wrapped one is never taken for one."""
        cells = split_cells(text.partition("|")[2])
        problems = [
            unread(line, "timer without a finite number", f"{c.key}: {c.text}") for c in cells if c.value is None
        ]
        good = [cell for cell in cells if cell.value is not None]
        if len(good) > 1 and _digits(good[-1].text) < min(_digits(cell.text) for cell in good[:-1]):
            problems.append(unread(line, "the line ends inside this number", f"{good[-1].key}: {good[-1].text}"))
            good.pop()
        elif not problems and learn:
            self.timers.learn(tuple(cell.key for cell in good))
        return [*timer_record(line, rank, time, self.iteration, good), *problems]

    def _memory(self, line: int, rank: int | None, text: str, match: re.Match[str]) -> list[Record]:
        read = [(cell, memory_field(cell.key)) for cell in split_cells(text[match.end() :]) if cell.value is not None]
        speaker = int(match[1]) if match[1] else rank
        records = record_of("memory", line, speaker, int(match[2]), read)
        return records or [unread(line, "a memory line without any number", text)]

    def _validation(self, line: int, rank: int | None, text: str, match: re.Match[str]) -> list[Record]:
        cells = [cell for cell in split_cells(text[match.end() :]) if cell.value is not None]
        iteration = int(match[1]) if match[1] else self.iteration
        records = record_of("validation", line, rank, iteration, [(cell, validation_field(cell.key)) for cell in cells])
        return records or [unread(line, "a validation line without any number", text)]

    def _launch_line(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        closed = self.block.close()
        if text.isspace():
            return closed
        if "arguments" in text and _DUMP.match(text):
            self.dump, self.dump_at = {}, line
            return closed
        if any(mark in text for mark in MARKS) and (settings := stated(line, time, text, self.iteration)):
            return closed + settings
        if is_command(text) and (arguments := command_arguments(text)):
            return [*closed, Record("launch", line, data=arguments)]
        end = ending(text)
        return [*closed, Record("end", line, data=end, time=time, rank=rank)] if end else closed

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
        return [unread(line, "not an argument: expected `name ..... value`", text)]

    def _launch(self) -> Record:
        arguments, self.dump = self.dump, None
        return Record("launch", self.dump_at, data=arguments or {}, opens=True)

    def unwrap(self, rank: int | None, text: str) -> tuple[list[Record], str]:
        """Join a line to the wrapped record before it; return that record once it is complete, and what remains."""
        if self.wrapped[0].startswith("time (ms) |"):
            return self._unwrap_timers(rank, text)
        head = _STARTS.split(text)[0]
        so_far = self.wrapped[-1].rstrip()
        is_rest = "|" in head and head.strip() != ""
        if is_rest and len(self.wrapped) == 1 and not _is_cut(so_far):
            is_rest = continues(so_far, head)
        if not is_rest:
            return self._flush_wrapped(), text
        self.wrapped.append(head.rstrip("\r\n"))
        is_whole = head.rstrip().endswith("|") and len(head.rstrip("\r\n")) < len(self.wrapped[-2])
        if is_whole or len(self.wrapped) > _MAX_WRAP or len(head) < len(text):
            return self._flush_wrapped(), text[len(head) :]
        return [], ""

    def _unwrap_timers(self, rank: int | None, text: str) -> tuple[list[Record], str]:
        """Join the lines of a timer line: all but the last one are as long as the terminal is wide."""
        width = len(self.wrapped[0])
        rest = text.rstrip("\r\n")
        is_rest = (
            len(rest) <= width and len(self.wrapped) < _MAX_WRAPPED_TIMERS and _STARTS.match(rest.lstrip()) is None
        )
        if is_rest and _REST.match(rest) and rank == self.wrapped_at[1]:
            self.wrapped.append(rest)
            return [] if len(rest) == width else self._flush_wrapped(), ""
        return self._flush_wrapped(), text

    def _flush_wrapped(self) -> list[Record]:
        line, rank, time = self.wrapped_at
        if self.wrapped[0].startswith("time (ms) |"):
            lines, self.wrapped = self.wrapped, []
            records = self._timers(line, rank, time, "".join(lines), learn=len(lines) == 1)
            for record in records:
                record.until = line + len(lines) - 1
            return records
        text, last = joined(self.wrapped), line + len(self.wrapped) - 1
        self.wrapped = []
        match, memory = _ITERATION.match(text), _MEMORY.match(text)
        if match is not None:
            records = self._step(line, rank, time, text, match, cut=not text.rstrip().endswith("|"))
        else:
            records = self._memory(line, rank, text, memory) if memory else []
        for record in records:
            record.until = last
        return records


def _with_rate(parser: Parser, record: Record) -> Sequence[Record]:
    """Return a record behind the stated rate that does not belong to it, if there is one."""
    if parser.rate is None or record.kind != "step":
        return (record,)
    return (*parser.attach(record), record)


def _is_cut(text: str) -> bool:
    """Return whether an iteration line certainly goes on: it ends inside a cell, or before the time that all have."""
    return not text.rstrip().endswith("|") or ("consumed" in text and "elapsed" not in text)


def _fast(parser: Parser, line: int, rank: int | None, time: str | None, text: str) -> Record | None:
    """Read an iteration or timer line with a known layout; return None for any other line."""
    layouts = parser.timers if text.startswith("time") else parser.steps
    for index, layout in enumerate(layouts.layouts):
        match = layout.match(text)
        if match is None:
            continue
        if index:
            layouts.prefer(index)
        if layouts is parser.timers:
            return fast_timers(line, rank, time, parser.iteration, layout, match)
        record = fast_step(line, rank, time, layout, match)
        if record is not None:
            parser.iteration = record.iteration
        return record
    return None


def _peeled(parser: Parser, peeled: Line) -> Iterator[Record]:
    """Read a line that may have had a prefix, or that belongs to lines before it."""
    line, rank, time, text = peeled
    if parser.wrapped:
        records, text = parser.unwrap(rank, text)
        for record in records:
            yield from _with_rate(parser, record)
        if not text:
            return
    if parser.block.record is not None and fast_range(parser.block.record, text):
        return
    if not parser.expects_lines and (fast := _fast(parser, line, rank, time, text)) is not None:
        yield from parser.block.close()
        yield from _with_rate(parser, fast)
        return
    records = parser.feed(line, rank, time, text)
    if parser.rate is not None:
        records = list(chain.from_iterable(_with_rate(parser, record) for record in records))
    yield from records


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a log of Megatron-LM; yield launches, steps, timers, memory, validation and the end.

    Lines with a known layout, which are the majority, are read directly; all others are peeled first.
    """
    parser = Parser()
    for number, raw in enumerate(lines, 1):
        if parser.block.record is None and parser.dump is None and not parser.wrapped:
            if raw == "\n":  # also in place of a line of DeepSpeed
                continue
            record = _fast(parser, number, None, None, raw)
            if record is not None:
                if parser.rate is None:
                    yield record
                else:
                    yield from _with_rate(parser, record)
                continue
        for peeled in peel_line(number, raw):
            yield from _peeled(parser, peeled)
    yield from parser.finish()
