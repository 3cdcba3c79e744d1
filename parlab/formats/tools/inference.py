"""Figures of inference that have a form of their own: GenAI-Perf's table, llama.cpp's times, vLLM's latencies.

Sources: genai-perf and aiperf (console exporter), llama.cpp/src/llama-context.cpp (llama_perf_context_print),
vllm/benchmarks/latency.py. Each line gives figures in s or per second; percentiles are figures of their own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from parlab.formats.documents.tables import table
from parlab.formats.grammar.records import Record, figure, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import normal, slug, to_float, unit_of

SIGNS: Signs = (
    (re.compile(r"NVIDIA (?:GenAI-Perf|AIPerf) \| "), 60),
    (
        re.compile(r"^(?:llama_(?:perf_context_print|print_timings): )? *(?:prompt )?eval time = .*tokens per second"),
        30,
    ),
    (re.compile(r"^(?:Avg|\d{1,2}% percentile) latency: [\d.]+ seconds"), 30),
)

_NUMBER = r"\d{1,15}(?:\.\d{1,9})?"
_TIMING = re.compile(
    rf"(?:^|\s)(?P<name>load|sampl(?:e|ing)|prompt eval|eval|total) time\s{{1,4}}=\s{{1,12}}(?P<ms>{_NUMBER}) ms"
    rf"(?:\s/\s{{1,12}}(?P<count>\d{{1,12}}) (?:runs|tokens))?(?:\s{{1,8}}\(\s{{0,12}}{_NUMBER} ms per token,"
    rf"\s{{1,12}}(?P<rate>{_NUMBER}) tokens per second\))?"
)
_LATENCY = re.compile(rf"^\s*(?P<name>Avg|\d{{1,2}}% percentile) latency: (?P<value>{_NUMBER}) seconds\s*$")
_TITLE = re.compile(r"NVIDIA (?:GenAI-Perf|AIPerf) \| ([\w ,-]{1,60})")
_FRAMES = str.maketrans("┃║", "││")
_WITH_UNIT = re.compile(r"^(.{1,60}?)\s?\((ms|us|s|sec|per sec|requests/sec|tokens/sec|tokens/sec/user)\)$")
_RATES = {"per sec": "_per_s", "requests/sec": "_per_s", "tokens/sec": "_per_s", "tokens/sec/user": "_per_s_per_user"}
MAX_ROWS = 500


def timing(line: int, text: str) -> list[Record]:
    """Return the figures of a line of llama.cpp or of vLLM's latency benchmark; [] for any other line."""
    if " time" in text and (match := _TIMING.search(text)):
        name = slug(match["name"])
        records = [figure(line, f"{name}_time_s", normal(float(match["ms"]), 1e-3), text.strip(), "ms")]
        if match["rate"]:
            records.append(figure(line, f"{name}_tokens_per_s", float(match["rate"]), text.strip(), "tokens/s"))
        return records
    if " latency: " in text and (match := _LATENCY.match(text)):
        share = match["name"].partition("%")[0]
        name = "mean_latency_s" if share == "Avg" else f"p{share}_latency_s"
        return [figure(line, name, float(match["value"]), text.strip(), "s")]
    return []


class _Quantity(NamedTuple):
    name: str
    scale: float
    unit: str


def _quantity(label: str) -> _Quantity:
    """Return what a row of GenAI-Perf states: `Time to first token (ms)` -> time_to_first_token_s."""
    match = _WITH_UNIT.match(label)
    if match is None:
        return _Quantity(slug(label), 1.0, "")
    base, unit = slug(match[1]), match[2]
    if unit in _RATES:
        name = "requests" if base == "request_throughput" else base.replace("token_throughput", "tokens")
        return _Quantity(f"{name}{_RATES[unit]}", 1.0, unit)
    printed = unit_of(unit)
    return _Quantity(base, 1.0, unit) if printed is None else _Quantity(f"{base}_{printed[0]}", printed[1], unit)


class StatisticsTable:
    """Reads a table of GenAI-Perf: a row per statistic, a column per average, minimum or percentile."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.line = 0
        self.columns: list[str] = []
        self.rows: list[list[str]] = []

    def feed(self, line: int, text: str) -> list[Record] | None:
        """Read one line; None if it does not belong to such a table."""
        title = _TITLE.search(text)
        if title is not None:
            records = self.close()
            self.title = title[1].strip()
            return records
        if self.title is None or not text.strip():
            return None
        framed = text.strip().translate(_FRAMES)
        if framed[0] != "│":
            return [] if framed[0] in "┏┡├└╇┼─━" else None
        cells = [part.strip() for part in framed.strip("│").split("│")]
        if not self.columns:
            self.line, self.columns = line, cells
        elif self.rows and not any(cells[1:]):
            self.rows[-1][0] = f"{self.rows[-1][0]} {cells[0]}".strip()  # a label that the width wrapped
        elif len(cells) != len(self.columns) or len(self.rows) >= MAX_ROWS:
            return [unread(line, f"a row of {len(cells)} cells under {len(self.columns)} headings", text)]
        else:
            self.rows.append(cells)
        return []

    def close(self) -> list[Record]:
        """Return the table and its figures."""
        rows, columns, title = self.rows, self.columns, self.title
        self.rows, self.columns, self.title = [], [], None
        if not rows:
            return []
        records = [Record("table", self.line, data=table([columns], rows, line=self.line, title=title))]
        for row in rows:
            quantity = _quantity(row[0])
            for heading, text in zip(columns[1:], row[1:], strict=True):
                value = to_float(text)
                if value is None:
                    continue
                is_only = sum(to_float(other) is not None for other in row[1:]) == 1
                statistic = "" if is_only else "mean_" if heading == "avg" else f"{slug(heading)}_"
                printed = f"{row[0]}, {heading}: {text}"
                name = f"{statistic}{quantity.name}"
                records.append(figure(self.line, name, normal(value, quantity.scale), printed, quantity.unit))
        return records
