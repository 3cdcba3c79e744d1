"""all_reduce_bench of torch.distributed: blocks of one rank and trial, or the averages of later versions.

Blocks (BigScience, 2021): `8:`, ` duration: 0.7080 sec`, ` algo throughput: x bps, 90.4 Gbps`, ` busbw: 84.7  Gbps`.
Averages (ml-engineering, 2023 on): `The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 4 ranks):` and
two lines, or a table of payloads. `algo throughput` counts what is sent and received: the algbw of nccl-tests is half
of it. Ranks write at the same time, so a line is given to the block that has waited longest for one of its kind. The
first trial of a rank is warm-up.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import Line, peel_line
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import to_float
from parlab.formats.schema import Cell
from parlab.formats.tools.printed_tables import PrintedTable

SIGNS: Signs = (
    (re.compile(r"^\s*algo throughput: [\d.]+ bps,"), 8),
    (re.compile(r"^\s*(?:alg|bus)bw: [\d.]+\s+G[Bb]ps"), 6),
    (re.compile(r"^ignore me \d+\s*$"), 5),
    (re.compile(r"\bThe average bandwidth of \w+ (?:with|over) "), 20),
)

MAX_ROWS = 5_000
MAX_WAITING = 65_536
# A line of a block; its last group is its kind.
_BLOCK = re.compile(
    r"\s*(?:(?P<head>\d{1,7}):\s*\Z|duration: (?P<duration>\S{1,40}) sec\b"
    r"|algo throughput: (?P<bits>\S{1,40}) bps(?:, (?P<algo>\S{1,40}) Gbps)?"
    r"|busbw: (?P<bus>\S{1,40})\s{1,4}G[Bb]ps\b)"
)
_BANDWIDTH = re.compile(r"\s*(algbw|busbw): (\S{1,40})\s{1,4}(G[Bb]ps)\b")
_AVERAGE = re.compile(r"The average bandwidth of (\w{1,40})((?: (?:with|over) [^:]{1,120})?):")
_PAYLOAD = re.compile(r"\ba (\S{1,20}?) ?([KMGT])i?B payload")
_RANKS = re.compile(r"\b(\d{1,7}) ranks\b")
_TRIALS = re.compile(r"\b(\d{1,7}) trials\b")
_ROW = re.compile(r"\s*\|(.{1,400})\|\s*$")
_SCALE = {"Gbps": 1e9 / 8, "GBps": 1e9}
_POWER = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
_GBPS = 1e9 / 8
_FIELDS = (
    Field("duration_s", "duration", "sec"),
    Field("algo_throughput_bytes_per_s", "algo throughput", "Gbps", _GBPS),
    Field("busbw_bytes_per_s", "busbw", "Gbps", _GBPS),
)


@dataclass(slots=True)
class Trial:
    """A block: its first line, its rank, and the texts of its numbers so far."""

    line: int
    rank: int | None
    texts: list[str]


# Line of a block -> the line for which the block waits then.
_NEXT = {"duration": "algo", "algo": "bus"}
_NAMES = {"algo": "throughput", "bus": "bandwidth"}
_COLUMNS = ["rank", "trial", "duration (sec)", "algo throughput (Gbps)", "busbw (Gbps)"]


class Parser:
    """Assembles the interleaved lines of many ranks: a block waits in the queue of its next missing line."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[Trial]] = {"duration": deque(), "algo": deque(), "bus": deque()}
        self.trials: dict[int | None, int] = {}
        self.table: PrintedTable | None = None
        self.beyond: tuple[int, int] = (0, 0)
        """Line of the first trial beyond the limit of the table, and their number."""

    def open(self, line: int, rank: int | None) -> list[Record]:
        return self._wait("duration", Trial(line, rank, []))

    def block(self, line: int, match: re.Match[str]) -> list[Record]:
        """Read a line of a block."""
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "head":
            return self.open(line, int(text))
        if kind == "bits":
            kind, text = "algo", "" if (number := to_float(text)) is None else str(number / 1e9)
        waiting = self.waiting[kind]
        if not waiting and kind != "duration":
            return [unread(line, f"a {_NAMES[kind]} without the rest of its block", text)]
        trial = waiting.popleft() if waiting else Trial(line, None, [])
        trial.texts.append(text)
        return self._complete(trial) if kind == "bus" else self._wait(_NEXT[kind], trial)

    def _wait(self, kind: str, trial: Trial) -> list[Record]:
        """Let a block wait for a line; return the oldest one if too many do."""
        waiting = self.waiting[kind]
        waiting.append(trial)
        return [_lost(waiting.popleft())] if len(waiting) > MAX_WAITING else []

    def _complete(self, trial: Trial) -> list[Record]:
        raw = tuple(trial.texts)
        seconds, algo, busbw = to_float(raw[0]) or 0.0, to_float(raw[1]) or 0.0, to_float(raw[2]) or 0.0
        if seconds <= 0.0 or algo <= 0.0 or busbw <= 0.0:
            return [unread(trial.line, "a block without finite numbers", " ".join(raw))]
        algo, busbw = algo * _GBPS, busbw * _GBPS
        number = self.trials.get(trial.rank, 0) + 1
        if len(self.trials) < MAX_WAITING or trial.rank in self.trials:
            self.trials[trial.rank] = number
        values = {
            "duration_s": seconds,
            "algo_throughput_bytes_per_s": algo,
            "busbw_bytes_per_s": busbw,
            "algbw_bytes_per_s": algo / 2.0,
            "payload_bytes": algo / 2.0 * seconds,
        }
        if number > 1:
            values["busbw_after_first_trial_bytes_per_s"] = busbw
        self._add_row(trial, number)
        return [Record("metrics", trial.line, values, rank=trial.rank, fields=_FIELDS, raw=raw)]

    def _add_row(self, trial: Trial, number: int) -> None:
        if self.table is None:
            self.table = PrintedTable(trial.line, _COLUMNS, MAX_ROWS, "trials")
        rank = "" if trial.rank is None else str(trial.rank)
        if self.table.add(trial.line, (rank, str(number), *trial.texts), ""):
            first, count = self.beyond
            self.beyond = (first or trial.line, count + 1)

    def finish(self) -> list[Record]:
        records = [_lost(trial) for queue in self.waiting.values() for trial in queue]
        if self.table is not None:
            records += self.table.records()
        first, count = self.beyond
        if count:
            reason = f"a table is limited to {MAX_ROWS} rows; the figures include all {MAX_ROWS + count} trials"
            records.append(unread(first, reason, ""))
        if self.trials:
            data = {"ranks": len(self.trials), "trials": max(self.trials.values())}
            records.append(Record("launch", 0, data=data))
        return records


def _lost(trial: Trial) -> Record:
    return unread(trial.line, "a block that was never completed", f"rank {trial.rank}")


class Averages:
    """Reads the averages printed by later versions."""

    def __init__(self) -> None:
        self.open = False
        self.table: PrintedTable | None = None

    def head(self, line: int, match: re.Match[str]) -> list[Record]:
        self.open = True
        settings = match[2]
        data: dict[str, object] = {"collective": match[1]}
        for name, pattern in (("world_size", _RANKS), ("trials", _TRIALS)):
            setting = pattern.search(settings)
            if setting:
                data[name] = int(setting[1])
        records = [*self.close(), Record("launch", line, data=data, opens=True)]
        payload = _PAYLOAD.search(settings)
        size = to_float(payload[1]) if payload else None
        if payload and size is not None:
            field = Field("payload_bytes", "payload", f"{payload[2]}B")
            value = size * _POWER[payload[2]]
            records.append(Record("metrics", line, {field.name: value}, fields=(field,), raw=(payload[1],)))
        return records

    def line(self, line: int, text: str) -> list[Record] | None:
        """Read a line below the header; None if it does not belong to it."""
        if match := _BANDWIDTH.match(text):
            name, number, unit = match.groups()
            if (value := to_float(number)) is None:
                return [unread(line, "not a finite number", text)]
            field = Field(f"{name}_bytes_per_s", name, unit)
            return [Record("metrics", line, {field.name: value * _SCALE[unit]}, fields=(field,), raw=(number,))]
        row = _ROW.match(text)
        return None if row is None else self._bandwidth_row(line, [part.strip() for part in row[1].split("|")][:20])

    def _bandwidth_row(self, line: int, cells: list[str]) -> list[Record]:
        if self.table is None:
            self.table = PrintedTable(line, cells, MAX_ROWS)
            return []
        if all(re.fullmatch(r":?-+:?", text) for text in cells):
            return []
        bad = self.table.add(line, cells, " | ".join(cells))
        return bad or _bandwidths(line, self.table.content.columns, self.table.rows[-1])

    def close(self) -> list[Record]:
        table, self.table = self.table, None
        return [] if table is None else table.records()


def _bandwidths(line: int, columns: list[str], row: list[Cell]) -> list[Record]:
    """Return the bandwidths of a row as metrics in bytes/s."""
    values = {
        f"{name}_bytes_per_s": value.value * _SCALE[value.unit]
        for name, value in zip(columns, row, strict=True)
        if name in ("busbw", "algbw") and value.value is not None and value.unit in _SCALE
    }
    return [Record("metrics", line, values), Record("event", line, data="size of messages")] if values else []


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read the output of all_reduce_bench; yields metrics per rank and trial (s, bytes/s) and a table of all trials."""
    parser, averages = Parser(), Averages()
    block = _BLOCK.match
    for number, raw in enumerate(lines, 1):
        # The averages of later versions have lines of bandwidths too.
        match = block(raw) if not averages.open and len(raw) < 200 and "\r" not in raw else None
        if match:
            yield from parser.block(number, match)
        else:
            for peeled in peel_line(number, raw):
                yield from _other(parser, averages, peeled)
    yield from averages.close()
    yield from parser.finish()


def _other(parser: Parser, averages: Averages, peeled: Line) -> Iterator[Record]:
    """Read a line with a prefix, or one of an average."""
    line, rank, time, text = peeled
    block = _BLOCK.match(text[:200])
    if block and block.lastgroup != "bus":
        yield from parser.block(line, block)
    elif rank is not None and not text.strip():
        # A line `8:` looks like the tag of srun, so peel removes it as a rank.
        yield from parser.open(line, rank)
    elif "average" in text and (match := _AVERAGE.search(text[:400])):
        yield from averages.head(line, match)
    elif averages.open and (average := averages.line(line, text[:500])) is not None:
        yield from average
    elif block:
        yield from parser.block(line, block)
    elif end := ending(text):
        yield Record("end", line, data=end, rank=rank, time=time)
