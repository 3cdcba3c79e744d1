"""Tables of documents: cells with their type, header rows joined to column names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from parlab.formats.grammar.units import NUMBER, slug, to_float
from parlab.formats.launch import typed
from parlab.formats.schema import Cell, Table

Align = Literal["left", "right", "center", ""]

_FAILURE = re.compile(
    r"(?i)\b(?:oom|out[ -]of[ -](?:\w+ )?(?:d?ram|memory)|fail(?:s|ed|ure)?|crash(?:ed|es)?|not runnable|error"
    r"|timed? ?out|does ?n[o']t fit|cannot run|n\.?/?a\.?|inf(?:inity)?|nan|killed|diverged)\b|^[x\u2717\u2718\u00d7]$"
)
_PLAIN = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?\Z", re.ASCII)
_BLANK = re.compile(r"^[\s\-\u2013\u2014.\u2026]*$")
_VALUE = re.compile(
    rf"^[~≈<>≤≥]?\s*({NUMBER.pattern})\s*~?\s*([A-Za-zµμ%°][\w/%.*-]{{0,20}}|%)?\s*(?:\(([^()]*)\))?[\s,;.]*$"
)
_LABELLED = re.compile(rf"^([A-Za-z][\w .-]{{0,60}}?)\s*\(\s*({NUMBER.pattern})\s*((?:,[^()]*)?)\)[\s,;.]*$")
_SETTING = re.compile(r"([A-Za-z_][\w -]{0,60}?)\s*=\s*([^,;]{1,80})")
_EXPERIMENT = re.compile(r"\bz(\d)((?:_(?:gas|tmbspg|rbs|abs|spmbs|[a-z]{2,8})[\d.]+(?:e[+-]?\d+)?)+)\b")
_SHORT = {
    "z": "zero_stage",
    "gas": "gradient_accumulation_steps",
    "mbs": "micro_batch_size",
    "tmbspg": "micro_batch_size",
    "rbs": "reduce_bucket_size",
    "abs": "allgather_bucket_size",
}


def experiment_settings(name: str) -> dict[str, Any]:
    """Parse the name of a DeepSpeed tuning experiment: `z1_gas1_tmbspg3` -> ZeRO stage, accumulation, micro batch.

    The tuner's abbreviations (deepspeed/autotuning/autotuner.py) are expanded; unknown ones are kept.
    """
    match = _EXPERIMENT.search(name[:300])
    if match is None:
        return {}
    settings: dict[str, Any] = {"zero_stage": int(match[1])}
    for short, value in re.findall(r"_([a-z]+)([\d.]+(?:e[+-]?\d+)?)", match[2]):
        settings[_SHORT.get(short, short)] = typed(value)
    return settings


@lru_cache(maxsize=8192)
def cell(text: str) -> Cell:
    """Parse one cell: a number (with unit and details in brackets), a failure, a blank or text.

    Equal texts give the same object, which must not be changed: rows of measurements mostly repeat.
    """
    if _PLAIN.match(text) and (number := to_float(text)) is not None:
        return Cell(text=text, kind="number", value=number, unit="", details={})
    text = " ".join(text.split())[:2000]
    if _BLANK.match(text):
        return Cell(text=text, kind="blank")
    match = _VALUE.match(text)
    if match and (value := to_float(match[1])) is not None:
        return Cell(text=text, kind="number", value=value, unit=match[2] or "", details=_details(match[3] or ""))
    match = _LABELLED.match(text)
    if match and (value := to_float(match[2])) is not None:
        return Cell(text=text, kind="number", value=value, details={"label": match[1], **_details(match[3])})
    if _FAILURE.match(text) or (len(text.split()) <= 6 and _FAILURE.search(text)):
        return Cell(text=text, kind="failure")
    return Cell(text=text, kind="text", details=experiment_settings(text))


def _details(text: str) -> dict[str, Any]:
    """Parse the text in brackets after a number."""
    details: dict[str, Any] = {
        _SHORT.get(slug(name), slug(name)): typed(value) for name, value in _SETTING.findall(text)
    }
    details |= experiment_settings(text)
    if text.strip(" ,") and not details:
        details["note"] = text.strip(" ,")
    return details


def table(
    header: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    *,
    line: int,
    align: Sequence[Align] = (),
    title: str | None = None,
) -> Table:
    """Build a table from header rows and body rows; short rows are padded with blanks, every column gets a name."""
    width = max((len(row) for row in (*header, *rows)), default=0)
    full = [[*row, *[""] * (width - len(row))] for row in header]
    columns = [" ".join(part for row in full if (part := " ".join(row[n].split()))) for n in range(width)]
    cells = [[cell(text) for text in (*row, *[""] * (width - len(row)))] for row in rows]
    built = Table(line=line, columns=columns, header=full, align=list(align), rows=cells, title=title)
    _mark_failed_spaces(built)
    return built


def _mark_failed_spaces(built: Table) -> None:
    """Mark failures in the summary of DeepSpeed's tuner: a best metric of 0 means that all experiments failed."""
    if "tuning_space" not in built.columns or "best_metric_val" not in built.columns:
        return
    column = built.columns.index("best_metric_val")
    for row in built.rows:
        if row[column].value == 0:
            row[column] = Cell(text=row[column].text, kind="failure")
