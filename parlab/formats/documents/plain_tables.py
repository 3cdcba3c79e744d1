"""Where a table stands in plain text: CSV, columns aligned with spaces, frames of `tabulate` or Rich.

Nothing but its header tells such a table from other text: names of settings and of measured quantities, above rows with
as many cells and numbers in them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from parlab.formats.documents.tables import cell
from parlab.formats.grammar.counters import counter_in
from parlab.formats.grammar.names import setting_of
from parlab.formats.grammar.quantities import quantity_of_metric
from parlab.formats.grammar.units import to_float

MAX_COLUMNS = 500
MAX_LINE = 20_000
_MEASURED = re.compile(
    r"(?i)throughput|speed|(?:step|iter|iteration|batch|epoch)[ _]?time|time per|time ?\(|/s(?:ec)?\b|per[ _]sec"
    r"|flops?\b|\bmfu\b|memory|\bmem\b|\bvram\b|bandwidth|busbw|latency|(?:step|iteration|iter|total) ?\((?:s|ms|sec)\)"
)
# A table with one of these columns is the history of one run.
_COUNTER = re.compile(
    r"(?i)^(?:global_?)?(?:step|epoch|iter|iteration|update)s?$|^_step$|time ?stamp|^date$|^wall time$"
)
_LABEL = re.compile(
    r"(?i)^(?:num[_ ])?(?:nodes?|models?|config\w*|name|run|variant|batch|method|strategy|framework|setup)$"
)
_SEPARATORS = ("\t", ";", ",")
_BORDER = re.compile(r"^\s*[|+]?[-=+|:\s]*[-=]{2}[-=+|:\s]*$")
_BOX = str.maketrans({**dict.fromkeys("│┃║", "|"), **dict.fromkeys("─━═", "-"),
                      **dict.fromkeys("┌┐└┘├┤┬┴┼╞╡╪╒╕╘╛╤╧┏┓┗┛┡┩┳┻╇╋╭╮╰╯", "+")})  # fmt: skip
_TIME = re.compile(r"\b\d\d:\d\d:\d\d\b")
_GAP = re.compile(r"\s{2,}|\t")


def table_at(rows: Sequence[str], at: int) -> tuple[list[str], list[list[str]], int] | None:
    """Return header, rows and the line after the table whose header is line `at`; None if there is none."""
    split = _split_of(rows[at])
    if split is None:
        return None
    header = _cells(rows[at], split)
    if not _is_header(header):
        return None
    body: list[list[str]] = []
    end = at + 1
    while end < len(rows):
        row = rows[end]
        end += 1
        if is_border(row):
            continue
        texts = _cells(row, split) if row.strip() else []
        if split == " " and len(texts) == len(header) + 1 and texts[0].isdecimal():
            texts = texts[1:]  # the index of a pandas.DataFrame, which has no title
        if len(texts) != len(header) or not any(map(_is_number, texts)):
            end -= 1
            break
        body.append(texts)
    return (header, body, end) if body else None


def is_border(row: str) -> bool:
    """Return whether a line draws the frame of a table."""
    return _BORDER.match(row[:MAX_LINE].translate(_BOX)) is not None


def _split_of(row: str) -> str | None:
    """Return what separates the cells of a header: a character, a space for gaps, None for a line of one cell."""
    if not row or len(row) > MAX_LINE or not _MEASURED.search(row):
        return None
    if "|" in row.translate(_BOX):
        return "|"
    return next((mark for mark in _SEPARATORS if mark in row), " " if _GAP.search(row.strip()) else None)


def _cells(row: str, split: str) -> list[str]:
    if split == "|":
        return [text.strip() for text in row.translate(_BOX).strip().strip("|").split("|")][:MAX_COLUMNS]
    if split == " ":
        return _GAP.split(row.strip())[:MAX_COLUMNS]
    try:
        return [text.strip() for text in next(csv.reader([row.replace("\0", "")], delimiter=split))][:MAX_COLUMNS]
    except (csv.Error, StopIteration):
        return []


def _is_header(header: Sequence[str]) -> bool:
    if not 2 <= len(header) < MAX_COLUMNS or any(to_float(name) is not None or len(name) > 80 for name in header):
        return False
    if any(counter_in(name) is not None or _TIME.search(name) for name in header):
        return False  # a step of a log, with its cells between bars
    if len({*filter(None, header)}) < max(2, len(header) - 1) or any(_COUNTER.search(name) for name in header):
        return False
    measured = [name for name in header if _MEASURED.search(name) or quantity_of_metric(name) is not None]
    settings = [name for name in header if name not in measured and (setting_of(name) or _LABEL.search(name))]
    return bool(measured) and len(measured) + len(settings) > 1


def _is_number(text: str) -> bool:
    return cell(text).kind == "number"
