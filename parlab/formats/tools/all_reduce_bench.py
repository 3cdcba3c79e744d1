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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from parlab.formats.documents.tables import cell
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import Line, peel_line
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import to_float
from parlab.formats.schema import Cell, Table

SIGNS: Signs = (
    (re.compile(r"^\s*algo throughput: [\d.]+ bps,"), 8),
    (re.compile(r"^\s*(?:alg|bus)bw: [\d.]+\s+G[Bb]ps"), 6),
    (re.compile(r"^ignore me \d+\s*$"), 5),
    (re.compile(r"\bThe average bandwidth of \w+ (?:with|over) "), 20),
)

MAX_ROWS = 5_000
MAX_WAITING = 65_536
# A line of a block.
_BLOCK = re.compile(
    r"\s*(?:(?P<head>\d{1,7}):\s*\Z|duration: (?P<duration>\S{1,40}) sec\b"
    r"|algo throughput: (?P<algo>\S{1,40}) bps(?:, (?P<algo_gbps>\S{1,40}) Gbps)?"
    r"|busbw: (?P<bus>\S{1,40})\s{1,4}G[Bb]ps\b)"
)
_BUS = re.compile(r"\s*busbw: (\S{1,40})\s{1,4}(G[Bb]ps)\b")
_ALGBW = re.compile(r"\s*algbw: (\S{1,40})\s{1,4}(G[Bb]ps)\b")
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
    """An incomplete block."""

    line: int
    rank: int | None
    duration: str | None = None
    algo: str | None = None


class Parser:
    """Assembles the interleaved lines of many ranks: a block waits in the queue of its next missing line."""

    def __init__(self) -> None:
        self.begun: deque[Trial] = deque()
        self.timed: deque[Trial] = deque()
        self.rated: deque[Trial] = deque()
        self.trials: dict[int | None, int] = {}
        self.table: Table | None = None
        self.beyond: tuple[int, int] = (0, 0)
        """Line of the first trial beyond the limit of the table, and their number."""
        self.takes: dict[str | None, Callable[[int, str], list[Record]]] = {
            "bus": self.bus,
            "duration": self.duration,
            "algo_gbps": self.algo,
            "algo": self.algo_in_bits,
            "head": self.head,
        }
        """Last group of a line of a block -> what reads its text."""

    def open(self, line: int, rank: int | None) -> list[Record]:
        self.begun.append(Trial(line, rank))
        return _dropped(self.begun) if len(self.begun) > MAX_WAITING else []

    def block(self, line: int, match: re.Match[str]) -> list[Record]:
        """Read a line of a block."""
        kind = match.lastgroup
        return self.takes[kind](line, match[kind or 0])

    def head(self, line: int, text: str) -> list[Record]:
        return self.open(line, int(text))

    def duration(self, line: int, text: str) -> list[Record]:
        trial = self.begun.popleft() if self.begun else Trial(line, None)
        trial.duration = text
        self.timed.append(trial)
        return _dropped(self.timed) if len(self.timed) > MAX_WAITING else []

    def algo_in_bits(self, line: int, text: str) -> list[Record]:
        number = to_float(text)
        return self.algo(line, "" if number is None else str(number / 1e9))

    def algo(self, line: int, text: str) -> list[Record]:
        if not self.timed:
            return [unread(line, "a throughput without the duration of its block", text)]
        trial = self.timed.popleft()
        trial.algo = text
        self.rated.append(trial)
        return _dropped(self.rated) if len(self.rated) > MAX_WAITING else []

    def bus(self, line: int, text: str) -> list[Record]:
        if not self.rated:
            return [unread(line, "a bandwidth without the rest of its block", text)]
        return self._complete(self.rated.popleft(), text)

    def _complete(self, trial: Trial, bus: str) -> list[Record]:
        raw = (trial.duration or "", trial.algo or "", bus)
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
        self._bandwidth_row(trial, number, raw)
        return [Record("metrics", trial.line, values, rank=trial.rank, fields=_FIELDS, raw=raw)]

    def _bandwidth_row(self, trial: Trial, number: int, raw: tuple[str, ...]) -> None:
        if self.table is None:
            columns = ["rank", "trial", "duration (sec)", "algo throughput (Gbps)", "busbw (Gbps)"]
            self.table = Table(line=trial.line, columns=columns, header=[columns], rows=[], title="trials")
        if len(self.table.rows) >= MAX_ROWS:
            first, count = self.beyond
            self.beyond = (first or trial.line, count + 1)
            return
        rank = "" if trial.rank is None else str(trial.rank)
        self.table.rows.append(list(map(cell, (rank, str(number), *raw))))

    def finish(self) -> list[Record]:
        records = [_lost(trial) for queue in (self.begun, self.timed, self.rated) for trial in queue]
        if self.table is not None:
            records.append(Record("table", self.table.line, data=self.table))
        first, count = self.beyond
        if count:
            reason = f"a table is limited to {MAX_ROWS} rows; the figures include all {MAX_ROWS + count} trials"
            records.append(unread(first, reason, ""))
        if self.trials:
            data = {"ranks": len(self.trials), "trials": max(self.trials.values())}
            records.append(Record("launch", 0, data=data))
        return records


def _dropped(queue: deque[Trial]) -> list[Record]:
    """Drop the oldest of too many blocks."""
    return [_lost(queue.popleft())]


def _lost(trial: Trial) -> Record:
    return unread(trial.line, "a block that was never completed", f"rank {trial.rank}")


class Averages:
    """Reads the averages printed by later versions."""

    def __init__(self) -> None:
        self.open = False
        self.table: Table | None = None

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
        for name, pattern in (("algbw_bytes_per_s", _ALGBW), ("busbw_bytes_per_s", _BUS)):
            match = pattern.match(text)
            if match:
                value = to_float(match[1])
                if value is None:
                    return [unread(line, "not a finite number", text)]
                field = Field(name, name.partition("_")[0], match[2])
                return [Record("metrics", line, {name: value * _SCALE[match[2]]}, fields=(field,), raw=(match[1],))]
        row = _ROW.match(text)
        return None if row is None else self._bandwidth_row(line, [part.strip() for part in row[1].split("|")][:20])

    def _bandwidth_row(self, line: int, cells: list[str]) -> list[Record]:
        if self.table is None:
            self.table = Table(line=line, columns=cells, header=[cells], rows=[])
            return []
        if all(re.fullmatch(r":?-+:?", text) for text in cells):
            return []
        if len(cells) != len(self.table.columns) or len(self.table.rows) >= MAX_ROWS:
            return [
                unread(line, f"a row of another width than its table, or beyond {MAX_ROWS} rows", " | ".join(cells))
            ]
        row = [cell(text) for text in cells]
        self.table.rows.append(row)
        return _bandwidths(line, self.table.columns, row)

    def close(self) -> list[Record]:
        table, self.table = self.table, None
        return [Record("table", table.line, data=table)] if table is not None and table.rows else []


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
    takes, block = parser.takes, _BLOCK.match
    for number, raw in enumerate(lines, 1):
        # The averages of later versions have lines of bandwidths too.
        match = block(raw) if not averages.open and len(raw) < 200 and "\r" not in raw else None
        if match:
            kind = match.lastgroup
            if records := takes[kind](number, match[kind or 0]):
                yield from records
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
