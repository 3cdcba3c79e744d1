"""Benchmarks of inference servers: the results of vLLM, SGLang and TensorRT-LLM, one row of a table per benchmark.

Sources: vllm/benchmarks/serve.py and throughput.py, sglang/bench_serving.py, tensorrt_llm/bench. They measure requests,
not training steps, so they give a table and figures, and no segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from parlab.formats.documents.tables import table
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Record, figure, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import normal, slug, to_float, unit_of
from parlab.formats.tools import inference

SIGNS: Signs = (
    (re.compile(r"^\s*=+ Serving Benchmark Result =+\s*$"), 40),
    (re.compile(r"^\s*={1,4} PERFORMANCE OVERVIEW"), 20),
    (re.compile(r"(?i)^\s*(?:Request|Output token|Total token|Total Output) throughput \([a-z]{3,8}/s(?:ec)?\):"), 10),
    (re.compile(r"(?i)^\s*(?:Mean|Median|P99) (?:TTFT|TPOT|ITL|E2EL?)\b[^:]{0,40}\(ms\):"), 6),
    *inference.SIGNS,
    (re.compile(r"^Throughput: [\d.]+ requests/s, [\d.]+ (?:total )?tokens/s"), 10),
)  # fmt: skip

_START = re.compile(r"^\s*=+ (?:Serving Benchmark Result|PERFORMANCE OVERVIEW) ?=*\s*$")
_ROW = re.compile(
    r"\s*(?P<label>(?:\[[\w ]{1,20}\] )?[A-Za-z][\w .,/%-]{0,60}?(?:\s?\((?P<unit>[^()]{1,40})\))?)\s?:\s{1,60}"
    r"(?P<value>[+-]?[\d.,]{1,40}(?:[eE][+-]?\d{1,3})?|inf|nan|N/A)\s*(?P<after>[A-Za-z%/]{1,16})?\s*$"
)
_OFFLINE = re.compile(
    r"\bThroughput: ([\d.]{1,20}) requests/s, ([\d.]{1,20}) (?:total )?tokens/s(?:, ([\d.]{1,20}) output tokens/s)?"
)
_RATES = {"req/s": "requests_per_s", "req/sec": "requests_per_s", "tok/s": "tokens_per_s", "tokens/s": "tokens_per_s",
          "tokens/sec": "tokens_per_s", "tps/gpu": "tokens_per_s_per_gpu"}  # fmt: skip
_KIND = re.compile(
    r"(?i)^(total output|output|input|total|peak output|per gpu output)?\s?(?:token)?s? ?(?:generation )?throughput"
)
MAX_ROWS = 2_000
MAX_COLUMNS = 200
BEYOND = f"a benchmark table is limited to {MAX_ROWS} rows and {MAX_COLUMNS} columns"


@lru_cache(maxsize=1024)
def _named(label: str, unit: str) -> tuple[str, float]:
    """Return name and factor of a figure in s, bytes or per second: `Mean TTFT (ms)` -> mean_ttft_s, 0.001."""
    base = label.partition("(")[0].strip()
    rate = _RATES.get(unit.lower())
    if rate:
        kind = _KIND.match(base)
        which = slug(kind[1]) + "_" if kind and kind[1] else ""
        return f"{which}{rate}", 1.0
    base_unit = unit_of(unit) if unit else None
    return (slug(base), 1.0) if base_unit is None else (f"{slug(base)}_{base_unit[0]}", base_unit[1])


def _figure(line: int, label: str, unit: str, value: float, text: str) -> Record:
    name, scale = _named(label, unit)
    return figure(line, name, normal(value, scale), text, unit)


class Results:
    """Collects the rows of benchmarks; a new one starts with its heading or when a label repeats."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []
        self.columns: dict[str, None] = {}
        self.line = 0
        self.is_open = False

    def add(self, line: int, label: str, text: str) -> bool:
        """Add a value to the current benchmark; return False beyond the limits."""
        if not self.is_open or label in self.rows[-1]:
            if len(self.rows) >= MAX_ROWS:
                return False
            self.rows.append({})
            self.is_open = True
            self.line = self.line or line
        if label not in self.columns and len(self.columns) >= MAX_COLUMNS:
            return False
        self.columns[label] = None
        self.rows[-1][label] = text
        return True

    def table(self) -> Iterator[Record]:
        """Yield the table of all benchmarks, one per row."""
        if self.rows:
            columns = list(self.columns)
            rows = [[row.get(name, "") for name in columns] for row in self.rows]
            yield Record("table", self.line, data=table([columns], rows, line=self.line, title="Serving benchmark"))


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read benchmark results; yield figures in s and per second, and a table with one row per benchmark."""
    results, statistics = Results(), inference.StatisticsTable()
    for line, rank, time, printed in peel(lines):
        text = printed[:500].rstrip()
        in_table = statistics.feed(line, text)
        if in_table is not None:
            yield from in_table
            continue
        timings = inference.timing(line, text)
        if timings:
            yield from timings
            continue
        if _START.match(text):
            results.is_open = False
            continue
        offline = _OFFLINE.search(text) if "Throughput:" in text else None
        if offline:
            yield from _rates(results, line, offline, text.strip())
            continue
        match = _ROW.match(text)
        if match is None:
            end = ending(text)
            if end:
                yield Record("end", line, data=end, rank=rank, time=time)
            continue
        record = _row(results, line, match, text)
        if record is not None:
            yield record
    yield from statistics.close()
    yield from results.table()


def _rates(results: Results, line: int, match: re.Match[str], text: str) -> Iterator[Record]:
    """Yield the rates of a benchmark without a server."""
    names = ("Request throughput (req/s)", "Total token throughput (tok/s)", "Output token throughput (tok/s)")
    for name, value in zip(names, match.groups(), strict=True):
        if value is not None and (number := to_float(value)) is not None and results.add(line, name, value):
            yield _figure(line, name, name.rpartition("(")[2].rstrip(")"), number, text)


def _row(results: Results, line: int, match: re.Match[str], text: str) -> Record | None:
    """Add a row to the current benchmark and return its figure."""
    name, in_brackets, value, after = match.groups()
    number, unit = to_float(value), in_brackets or after or ""
    label = name if in_brackets or not unit else f"{name} ({unit})"
    if not results.add(line, label, value):
        return unread(line, BEYOND, text)
    if number is not None:
        return _figure(line, name, unit, number, text.strip())
    # An unlimited request rate is a setting, which the table has.
    return None if value.lower() == "inf" else unread(line, "not a finite number", text)
