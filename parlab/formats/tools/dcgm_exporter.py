"""What NVIDIA's dcgm-exporter serves to Prometheus: one scrape, or several one after another

Source: dcgm-exporter's default-counters.csv and DCGM's field identifiers. Memory is in MiB, ratios of the profiling
fields are from 0 to 1. A time in ms may follow a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import to_float
from parlab.formats.tools.nvidia_smi import Tables

SIGNS: Signs = (
    (re.compile(r"^# (?:HELP|TYPE) DCGM_FI_[A-Z0-9_]+ "), 20),
    (re.compile(r"^DCGM_FI_[A-Z0-9_]{1,80}\{gpu=\""), 20),
)
_SAMPLE = re.compile(
    r"(?P<name>DCGM_FI_[A-Z0-9_]{1,80})\{(?P<labels>[^}]{1,2000})\}\s+(?P<value>[+-]?[\w.+-]{1,40})(?:\s+\d{1,16})?\s*$"
)
_GPU = re.compile(r'(?:^|,)\s*gpu="(\d{1,5})"')
_MISSING = "-"
_MAX_CELLS = 100_000
# Field of DCGM -> column and unit of nvidia-smi, and the factor of a ratio; the others keep their names.
_COLUMNS: dict[str, tuple[str, str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("sm", "%", 1), "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem", "%", 1),
    "DCGM_FI_DEV_ENC_UTIL": ("enc", "%", 1), "DCGM_FI_DEV_DEC_UTIL": ("dec", "%", 1),
    "DCGM_FI_DEV_FB_USED": ("fb", "MB", 1), "DCGM_FI_DEV_FB_FREE": ("memory.free", "MB", 1),
    "DCGM_FI_DEV_FB_TOTAL": ("memory.total", "MB", 1), "DCGM_FI_DEV_POWER_USAGE": ("pwr", "W", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temp", "C", 1), "DCGM_FI_DEV_MEMORY_TEMP": ("mtemp", "C", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("pclk", "MHz", 1), "DCGM_FI_DEV_MEM_CLOCK": ("mclk", "MHz", 1),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gr_engine_active", "%", 100),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", "%", 100), "DCGM_FI_PROF_SM_OCCUPANCY": ("sm_occupancy", "%", 100),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", "%", 100),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", "%", 100),
}  # fmt: skip


class Parser(Tables):
    """Collects the samples of a scrape, which are in the order of their names, into a row for each GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._first_line = self._last_line = 1
        self._cells: dict[tuple[str, str], str] = {}

    def feed(self, line: int, text: str) -> list[Record]:
        """Read one line; a sample that comes again begins the next scrape."""
        match = _SAMPLE.match(text)
        gpu = _GPU.search(match["labels"]) if match is not None else None
        if match is None or gpu is None:
            return []
        place = (gpu[1], match["name"])
        records = self._end_scrape() if place in self._cells or len(self._cells) >= _MAX_CELLS else []
        if not self._cells:
            self._first_line = line
        self._cells[place], self._last_line = match["value"], line
        return records

    def close(self) -> list[Record]:
        """Return what is left, and the table of all rows."""
        return self._end_scrape() + super().close()

    def _end_scrape(self) -> list[Record]:
        cells, self._cells = self._cells, {}
        if not cells:
            return []
        fields = list(dict.fromkeys(name for _, name in cells))
        columns = [_COLUMNS.get(name, (name.removeprefix("DCGM_FI_").lower(), "", 1)) for name in fields]
        names, units = ["gpu", *(name for name, _, _ in columns)], ["", *(unit for _, unit, _ in columns)]
        records = self.open(self._first_line, names, units)
        assert self.rows is not None
        for gpu in dict.fromkeys(gpu for gpu, _ in cells):
            tokens = [
                _scaled(cells.get((gpu, name), _MISSING), column[2])
                for name, column in zip(fields, columns, strict=True)
            ]
            row = self.rows.add(self._first_line, [gpu, *tokens], None)
            for record in row:
                record.until = self._last_line
            records += row
        return records


def _scaled(token: str, factor: float) -> str:
    """Return a number in the unit of its column; a number that is none is missing."""
    number = to_float(token)
    if number is None:
        return _MISSING
    return token if factor == 1 else f"{number * factor:.10g}"


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read scrapes; yield per scrape and GPU its metrics (bytes, watts, Hz, %), and a table of all."""
    parser = Parser()
    for line, _, _, text in peel(lines):
        yield from parser.feed(line, text[:3_000].rstrip())
    yield from parser.close()
