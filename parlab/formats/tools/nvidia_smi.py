"""nvidia-smi dmon (and pmon), and `--query-gpu=... --format=csv`.

Source: nvidia-smi's manual page, drivers 450 to 590. dmon: two `#` header lines, names and units, columns vary with the
driver and `-s`; `-` is missing; `MB` means MiB. query-gpu: units in the header and, unless `nounits`, in each cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Field, Record, figure, unread
from parlab.formats.grammar.rows import Columns
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import MIB, slug, to_float, to_int, unit_of
from parlab.formats.schema import Cell, Table

_QUERY = re.compile(
    r"^(?:[a-z_.\d]{1,80}(?: \[[^\]]{1,12}\])?, ?){0,200}"
    r"(?:utilization|memory|power|temperature|clocks)\.[a-z_.]{1,80}(?: \[[^\]]{1,12}\])?(?:,|\s*$)"
)
SIGNS: Signs = (
    (re.compile(r"^#\s*(?:Date[\s,]+Time[\s,]+)?gpu[\s,]+(?:pwr|pid|sm|gtemp|temp|fb|mclk|rxpci|pviol|sbecc)\b"), 20),
    (re.compile(r"^#\s*(?:YYYYMMDD[\s,]+HH:MM:SS[\s,]+)?Idx[\s,]+(?:W|#|%|C|MB|MHz)(?:[\s,]|$)"), 10),
    (_QUERY, 20),
)

MAX_ROWS = 2_000
MAX_COLUMNS = 200
_UNITS = {
    "w": ("watts", 1.0), "mw": ("watts", 1e-3), "c": ("celsius", 1.0), "%": ("pct", 1.0),
    "mhz": ("hz", 1e6), "mb": ("bytes", MIB), "mib": ("bytes", MIB), "mb/s": ("bytes_per_s", 1e6),
    "mib/s": ("bytes_per_s", MIB), "kb/s": ("bytes_per_s", 1e3), "bool": ("", 1.0), "#": ("", 1.0),
}  # fmt: skip
_NAMES = {
    "sm": "gpu_util", "utilization.gpu": "gpu_util", "mem": "memory_util", "utilization.memory": "memory_util",
    "enc": "encoder_util", "dec": "decoder_util", "jpg": "jpeg_util", "ofa": "ofa_util",
    "fb": "gpu_mem", "memory.used": "gpu_mem", "memory.total": "gpu_mem_total", "memory.free": "gpu_mem_free",
    "pwr": "power", "power.draw": "power", "power.draw.average": "power_average", "power.draw.instant": "power_instant",
    "power.limit": "power_limit", "gtemp": "temperature", "temp": "temperature", "temperature.gpu": "temperature",
    "mtemp": "memory_temperature", "temperature.memory": "memory_temperature",
    "mclk": "memory_clock", "pclk": "sm_clock", "clocks.current.sm": "sm_clock", "clocks.sm": "sm_clock",
    "clocks.current.memory": "memory_clock", "clocks.mem": "memory_clock", "rxpci": "pcie_rx", "txpci": "pcie_tx",
}  # fmt: skip
_WORDS = frozenset({"timestamp", "date", "time", "name", "uuid", "gpu_uuid", "pci.bus_id", "command", "type"})
_NO_FIGURE = frozenset({"gpu", "index", "pid", "count"})
_DEGREES = frozenset({"temperature.gpu", "temperature.memory"})
_MISSING = re.compile(r"-|\[?(?:N/A|Not Supported|Not Available|Unknown Error|GPU is lost)\]?", re.IGNORECASE)
_QUERY_NAME = re.compile(r"([a-z][a-z_.\d]{0,80})(?: \[([^\]]{1,12})\])?")
_AMOUNT = re.compile(r"\s*([+-]?(?:\d[\d,_]{0,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,9})?)\s*(.{0,40}?)\s*")


def _amount(text: str) -> tuple[float, str] | None:
    """Split `66.91GiB` into number and unit; return None without a finite number."""
    match = _AMOUNT.fullmatch(text[:128])
    value = to_float(match[1]) if match else None
    return None if match is None or value is None else (value, match[2])


@lru_cache(maxsize=4096)
def _field(name: str, unit: str) -> Field:
    """Return the field of a column: `fb`, MB -> gpu_mem_bytes; `clocks.sm`, MHz -> sm_clock_hz."""
    plain = unit.removeprefix("GPM:").strip()
    normal = _NAMES.get(name, slug(name))
    if not plain and name in _DEGREES:
        plain = "C"
    suffix_and_scale = _UNITS.get(plain.lower()) or unit_of(plain)
    if suffix_and_scale is None:
        return Field(slug(f"{normal} {plain}") if plain else normal, name, unit)
    suffix, scale = suffix_and_scale
    return Field(f"{normal}_{suffix}" if suffix else normal, name, unit, scale)


@lru_cache(maxsize=8192)
def _sample_cell(name: str, unit: str, token: str) -> Cell:
    """Return one typed cell of the table. Rows share equal cells, which must not be changed."""
    if _MISSING.fullmatch(token):
        return Cell(text=token, kind="blank", value=None, unit="", details={})
    quantity = None if name in _WORDS else _amount(token)
    if quantity is None:
        return Cell(text=token, kind="text", value=None, unit="", details={})
    return Cell(text=token, kind="number", value=quantity[0], unit=quantity[1] or unit, details={})


class Rows:
    """A table that is being read: columns with their units, and the GPU of each row."""

    def __init__(self, line: int, names: list[str], units: list[str]) -> None:
        self.names = names
        self.units = units
        self.fields = [_field(name, unit) for name, unit in zip(names, units, strict=True)]
        self.table = Table(line=line, columns=names, header=[names, units] if any(units) else [names], rows=[])
        self.count = 0
        self.numbers: dict[str, int] = {}
        self.figures = ["" if name in _WORDS or name in _NO_FIGURE else name for name in names]
        self.numeric = [at for at, name in enumerate(self.figures) if name]
        self.plain = Columns(self.numeric, [self.fields[at] for at in self.numeric])
        self.index = self._place("gpu", "index")
        self.identity = self._place("uuid", "gpu_uuid", "pci.bus_id")
        self.stamps = [at for at, name in enumerate(names) if name in ("timestamp", "date", "time")]

    def _place(self, *names: str) -> int | None:
        return next((self.names.index(name) for name in names if name in self.names), None)

    def add(self, line: int, tokens: list[str], time: str | None) -> list[Record]:
        """Read one row: return a record of its numbers, and add a row to the table up to MAX_ROWS."""
        plain = self.plain.read(tokens)
        if plain is not None and plain[0]:
            self._sample(tokens)
            stamp = (self._time(tokens) or time) if self.stamps else time
            return [Record("metrics", line, plain[0], None, self._about(tokens), stamp, self.plain.fields, plain[1])]
        cells: list[tuple[Pair, Field]] = []
        for name, field, token in zip(self.figures, self.fields, tokens, strict=True):
            if not name or token == "-":
                continue
            number, own = to_float(token), field
            if number is None and (quantity := _amount(token)) is not None:
                number, unit = quantity
                own = field if unit == field.unit else _field(name, unit)
            if number is not None or (field.unit and not _MISSING.fullmatch(token)):
                cells.append((Pair(name, token, own.unit, number), own))
        self._sample(tokens)
        return record_of("metrics", line, self._about(tokens), None, cells, self._time(tokens) or time)

    def _sample(self, tokens: list[str]) -> None:
        """Count a row, and add it to the table up to MAX_ROWS."""
        self.count += 1
        if self.count <= MAX_ROWS:
            columns = zip(self.names, self.fields, tokens, strict=True)
            self.table.rows.append([_sample_cell(name, field.unit, token) for name, field, token in columns])

    def _about(self, tokens: list[str]) -> int | None:
        """Return the number of a row's GPU: its index, or the order in which its UUID or bus id first appeared."""
        if self.index is not None:
            text = tokens[self.index]
            return int(text) if len(text) < 5 and text.isdecimal() and text.isascii() else to_int(text)
        if self.identity is None:
            return None
        identity = tokens[self.identity]
        if identity not in self.numbers and len(self.numbers) >= 65_536:
            return None
        return self.numbers.setdefault(identity, len(self.numbers))

    def _time(self, tokens: list[str]) -> str | None:
        return " ".join(tokens[at].strip('"') for at in self.stamps) or None

    def close(self) -> list[Record]:
        """Return the table and the number of rows, including those beyond MAX_ROWS."""
        if not self.count:
            return []
        basis = f"{self.count} rows" + (f", the first {MAX_ROWS} in the table" if self.count > MAX_ROWS else "")
        table = Record("table", self.table.line, data=self.table)
        return [table, figure(self.table.line, "rows", float(self.count), basis)]


class Tables:
    """The tables of a tool, one after the other."""

    def __init__(self) -> None:
        self.rows: Rows | None = None

    def open(self, line: int, names: list[str], units: list[str]) -> list[Record]:
        """Start a table, unless its header is that of the last one; return the records of the last one."""
        if self.rows is not None and self.rows.names == names:
            return []
        records = self.close()
        self.rows = Rows(line, names, units)
        return records

    def close(self) -> list[Record]:
        """Return the last table."""
        rows, self.rows = self.rows, None
        return rows.close() if rows is not None else []


class Parser(Tables):
    """Assigns rows to their header."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] | None = None
        self.query = False

    def comment(self, line: int, text: str) -> list[Record]:
        """Read a `#` line of dmon: column names, or the units below them; a repeated header has no effect."""
        tokens = [token for token in re.split(r"[\s,]+", text.lstrip("#").strip()) if token][:MAX_COLUMNS]
        if "gpu" in (token.lower() for token in tokens[:3]):
            self.names = [token.lower() for token in tokens]
            return []
        names, self.names = self.names, None
        if names is None or len(names) != len(tokens):
            return (
                [unread(line, "a line of units without column names above it", text)]
                if tokens and tokens[0] == "Idx"
                else []
            )
        units = ["" if unit in ("Idx", "YYYYMMDD", "HH:MM:SS", "#", "name", "C/G") else unit for unit in tokens]
        self.query = False
        return self.open(line, names, units)

    def query_header(self, line: int, text: str) -> list[Record]:
        """Read the first line of a query: column names with units in brackets."""
        columns = [_QUERY_NAME.fullmatch(part.strip()) for part in text.split(",")[:MAX_COLUMNS]]
        if not all(columns):
            return [unread(line, "a header with invalid column names", text)]
        names = [column[1] for column in columns if column]
        self.query = True
        return self.open(line, names, [column[2] or "" for column in columns if column])

    def row(self, line: int, time: str | None, text: str) -> list[Record]:
        rows = self.rows
        if rows is None:
            return [unread(line, "a row without a header above it", text)]
        width = len(rows.names)
        if self.query:
            tokens = [part.strip() for part in text.split(",")]
        else:
            # The last column of pmon is a command, which may contain blanks.
            limit = width - 1 if rows.names[-1] == "command" else -1
            tokens = (text.replace(",", " ") if "," in text else text).split(None, limit)
        if len(tokens) != width:
            return [unread(line, f"a row of {len(tokens)} cells under a header of {width} columns", text)]
        return rows.add(line, [token[:200] for token in tokens] if len(text) > 200 else tokens, time)


_DATA = re.compile(r'\s*["\d]')


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read dmon or query-gpu output; yield the table and, per row, metrics (bytes, watts, Hz, %) of a GPU."""
    parser = Parser()
    for line, _, time, whole in peel(lines):
        text = whole[:8000].strip("\r\n")
        if parser.rows is not None and not parser.query and _DATA.match(text):
            yield from parser.row(line, time, text)
            continue
        if not text or text.isspace():
            continue
        if text.startswith("#"):
            yield from parser.comment(line, text)
        elif _QUERY.match(text):
            yield from parser.query_header(line, text)
        elif parser.query or _DATA.match(text):
            yield from parser.row(line, time, text)
    yield from parser.close()
