"""MaxText: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, loss: 10.374`.

Source: MaxText/metric_logger.py of 2024 to 2026. `total_weights` counts the tokens of the global batch without padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.grammar.cells import Cell
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import STAMP, peel
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.readings import reading
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import slug, to_float

SIGNS: Signs = (
    (re.compile(r"\bcompleted step: \d+, seconds: "), 10),
    (re.compile(r"\b(?:eval metrics after step|average loss after step)\b:? \d+"), 6),
)

_STEP = re.compile(r"completed step: (\d{1,18})\s?[,\s]")
_START = re.compile(rf"{STAMP}completed step: \d{{1,18}}\s?[,\s]")
_EVAL = re.compile(r"\b(?:eval metrics after step|average loss after step):? (\d{1,18})\s?[:,]")
_CELL = re.compile(r"([A-Za-z][\w/ ().-]{0,60}?)\s?[:=]\s?([^\s,]{1,40})")
# Of a device, in units of 2**30 bytes.
_MEMORY = re.compile(r"\s{0,8}Using \(GB\) ([\d.]{1,20}) / [\d.]{1,20} \([^()]{1,20}\) on [A-Za-z]{2,8}_(\d{1,7})")


def _field(key: str) -> Field:
    known = known_to("maxtext").get(key)
    return Field(slug(key), key) if known is None else known.field(key)


def _cells(text: str) -> list[Cell]:
    return [Cell(m[1].strip(), m[2], to_float(m[2])) for m in _CELL.finditer(text[:4000])]


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a MaxText log; yield steps (s, FLOP/s and tokens/s per device), evaluations and the end."""
    repeats = Repeats(by_part(_START, _records))
    for line, rank, time, text in peel(lines):
        yield from repeats.read(line, rank, time, text)


def _records(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    """Return the step or evaluation of a line, or the end."""
    step = _STEP.search(text[:600])
    match = step or _EVAL.search(text[:600])
    if match is None and (memory := _MEMORY.match(text[:200])) and (used := to_float(memory[1])) is not None:
        field = _field("Using (GB)")
        return [
            Record(
                "memory", line, {field.name: used * field.scale}, rank=int(memory[2]), fields=(field,), raw=(memory[1],)
            )
        ]
    if match is None:
        end = ending(text)
        return [Record("end", line, data=end, rank=rank, time=time)] if end else []
    cells = _cells(text[match.end() :])
    if not cells:
        return [unread(line, "a step without any value", text)]
    kind: Kind = "step" if step else "validation"
    return reading(kind, line, cells, _field, iteration=int(match[1]), rank=rank, time=time)
