"""nvidia-smi: its box, dmon (and pmon), and `--query-gpu=... --format=csv`; rocm-smi, npu-smi and `dcgmi dmon`

Sources: rocm_smi_lib/rocm_smi.py (concise info of ROCm 4 to 6), the manual of npu-smi (`npu-smi info`), DCGM's dcgmi.
The cells of rocm-smi have their units; rows of npu-smi and of the box of nvidia-smi come in pairs, of which the second
has the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import Signs
from parlab.formats.tools import nvidia_smi
from parlab.formats.tools.nvidia_smi import Tables

_OTHERS: Signs = (
    (re.compile(r"=\s?ROCm System Management Interface\s?="), 20),
    (re.compile(r"\b(?:GPU|Device)\s+.{0,80}\bTemp\s.{0,80}\bPerf\s+PwrCap\s+VRAM%\s+GPU%"), 20),
    (re.compile(r"^\|\s*npu-smi\s"), 20),
    (re.compile(r"^\|\s*NVIDIA-SMI\s+\d"), 20),
    (re.compile(r"^\|\s*NPU\s+Name\s*\|\s*Health"), 20),
    (re.compile(r"^#\s?Entity\s+(?:[A-Z]{3,6}\s*)+$"), 20),
)
SIGNS: Signs = (*nvidia_smi.SIGNS, *_OTHERS)
# Lines in which the header of another tool than nvidia-smi stands.
_HEAD = 100

_ROCM = re.compile(r"(?:.{0,80}?\s)?(?P<first>GPU|Device)\s+(?P<names>\S.{0,200}\bVRAM%\s+GPU%)\s*$")
_ROCM_ROW = re.compile(r"(?:.{0,80}?\s)??(?P<index>\d{1,4})\s+(?P<cells>\S.*%\s+\S{1,8})\s*$")
_CELL = re.compile(r"([+-]?\d{1,9}(?:\.\d{1,6})?)\s?(\S{0,8})")
_MISSING = "-"
# Column -> name and unit of nvidia-smi's; the other columns, as of clocks and modes, keep theirs.
_COLUMNS = {
    "Temp": ("temp", "C"), "AvgPwr": ("pwr", "W"), "Power": ("pwr", "W"), "SCLK": ("pclk", "MHz"),
    "MCLK": ("mclk", "MHz"), "Fan": ("fan", "%"), "PwrCap": ("power.limit", "W"), "VRAM%": ("gpu_mem", "%"),
    "GPU%": ("sm", "%"),
}  # fmt: skip
_NPU = (("pwr", "W"), ("temp", "C"), ("sm", "%"), ("fb", "MB"), ("memory.total", "MB"))
_NPU_FIRST = re.compile(
    r"\|\s*(?P<npu>\d{1,4})\s+[\w-]{2,20}\s*\|\s*\w+\s*\|\s*(?P<watts>[\d.]{1,9}|-|NA)\s+(?P<celsius>\d{1,4}|-|NA)\s"
)
_NPU_SECOND = re.compile(
    r"\|\s*\d{1,4}\s*(?:\d{1,4}\s*)?\|\s*[\da-fA-F:.]{7,16}\s*\|\s*(?P<share>\d{1,3})\s+\d{1,9}\s*/\s*\d{1,9}"
    r"(?:\s+(?P<used>\d{1,9})\s*/\s*(?P<total>\d{1,9}))?\s*\|"
)
_BOX = (("fan", "%"), ("temp", "C"), ("pwr", "W"), ("power.limit", "W"), ("fb", "MB"), ("memory.total", "MB"),
        ("sm", "%"))  # fmt: skip
_BOX_FIRST = re.compile(r"\|\s+(?P<index>\d{1,4})\s+\S.{0,60}?\|\s*[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d\s")
_BOX_SECOND = re.compile(
    r"\|\s*(?P<fan>\d{1,3}|N/A)%?\s+(?P<temp>\d{1,4}|N/A)C?\s+\S{1,4}\s+(?P<watts>[\d.]{1,9}|N/A)W?\s*/\s*"
    r"(?P<limit>[\d.]{1,9}|N/A)W?\s*\|\s*(?P<used>\d{1,9})MiB\s*/\s*(?P<total>\d{1,9})MiB\s*\|\s*(?P<share>\d{1,3}|N/A)%?\s"
)
_DCGM = re.compile(r"#\s?Entity\s+(?P<names>(?:[A-Z]{3,6}\s*)+)$")
_DCGM_ROW = re.compile(r"\s*GPU\s+(?P<index>\d{1,4})\s+(?P<cells>\S.*)$")
_DCGM_COLUMNS = {
    "GPUTL": ("sm", "%"), "MCUTL": ("mem", "%"), "FBUSD": ("fb", "MB"), "FBTTL": ("memory.total", "MB"),
    "FBFRE": ("memory.free", "MB"), "POWER": ("pwr", "W"), "TMPTR": ("temp", "C"), "MMTMP": ("mtemp", "C"),
    "SMCLK": ("pclk", "MHz"), "MMCLK": ("mclk", "MHz"),
}  # fmt: skip


class Parser(Tables):
    """Reads one kind of table at a time; its header says which."""

    def __init__(self) -> None:
        super().__init__()
        self.first: re.Match[str] | None = None
        """The first of two lines that make a row."""
        self.names: list[str] = []

    def feed(self, line: int, time: str | None, text: str) -> list[Record]:
        """Read one line: a header, a row, or anything else."""
        if (header := _ROCM.match(text)) is not None:
            names = re.split(r"\s+", header["names"].strip())
            known = [_COLUMNS[name] for name in names if name in _COLUMNS]
            return self._open(line, known, names)
        if (header := _DCGM.match(text)) is not None:
            names = header["names"].split()
            columns = [_DCGM_COLUMNS.get(name, (name.lower(), "")) for name in names]
            return self._open(line, columns, names)
        if (first := _NPU_FIRST.match(text) or _BOX_FIRST.match(text)) is not None:
            self.first = first
            return []
        if (first := self.first) is not None and (second := _NPU_SECOND.match(text)) and "npu" in first.groupdict():
            cells = [first["npu"], first["watts"], first["celsius"], second["share"], second["used"], second["total"]]
            return self._pair(line, time, _NPU, cells)
        if first is not None and (second := _BOX_SECOND.match(text)) is not None:
            return self._pair(line, time, _BOX, [first[1], *second.groups()])
        if self.rows is None:
            return []
        cells = _dcgm_row(text, self.names) or _rocm_row(text, self.names)
        return self.rows.add(line, cells, time) if len(cells) == len(self.rows.names) else []

    def _open(self, line: int, columns: Sequence[tuple[str, str]], printed: list[str]) -> list[Record]:
        self.names = printed
        return self.open(line, ["gpu", *(name for name, _ in columns)], ["", *(unit for _, unit in columns)])

    def _pair(
        self, line: int, time: str | None, columns: Sequence[tuple[str, str]], cells: Sequence[str | None]
    ) -> list[Record]:
        """Add the row that this line and the one above it state."""
        self.first = None
        records = self._open(line, columns, [])
        if self.rows is None:
            return records
        row = self.rows.add(line, [cell if cell and cell[0].isdigit() else _MISSING for cell in cells], time)
        for record in row:
            record.line, record.until = line - 1, line
        return records + row


def _rocm_row(text: str, names: list[str]) -> list[str]:
    """Return the index and the known cells of a row of rocm-smi, without their units."""
    match = _ROCM_ROW.match(text)
    if match is None:
        return []
    cells = match["cells"].split()
    if len(cells) != len(names):
        # Later versions have cells of several words, in front of the clocks.
        behind = len(names) - names.index("SCLK") if "SCLK" in names else 0
        cells = _by_unit(cells[: len(cells) - behind], names[: len(names) - behind]) + cells[len(cells) - behind :]
    if len(cells) != len(names):
        return []
    known = [cell for name, cell in zip(names, cells, strict=True) if name in _COLUMNS]
    numbers = [_CELL.fullmatch(cell) for cell in known]
    return [match["index"], *(number[1] if number is not None else _MISSING for number in numbers)]


def _by_unit(cells: list[str], names: list[str]) -> list[str]:
    """Return the cell of each column: temperature and power by their units, nothing for the others."""
    endings = {"Temp": ("c", "C"), "AvgPwr": ("W",), "Power": ("W",)}
    return [
        next((cell.replace("\N{DEGREE SIGN}", "") for cell in cells if cell.endswith(endings.get(name, ()))), "N/A")
        for name in names
    ]


def _dcgm_row(text: str, names: list[str]) -> list[str]:
    match = _DCGM_ROW.match(text)
    cells = match["cells"].split() if match is not None else []
    if match is None or len(cells) != len(names):
        return []
    return [match["index"], *(cell if cell[0].isdigit() else _MISSING for cell in cells)]


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read the table of one of the tools; yield it and, per row, metrics (bytes, watts, Hz, %) of a device."""
    stream = iter(lines)
    head = list(islice(stream, _HEAD))
    whole = chain(head, stream)
    if not any(sign.search(text) for _, _, _, text in peel(head) for sign, _ in _OTHERS):
        yield from nvidia_smi.read(whole)
        return
    parser = Parser()
    for line, _, time, text in peel(whole):
        yield from parser.feed(line, time, text[:2_000].rstrip())
    yield from parser.close()
