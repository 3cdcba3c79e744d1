"""nanotron: `[INFO|DP=0|PP=0|TP=0|host]: iteration: 991 / 1000 | elapsed_time_per_iteration_ms: 4.71K | ...`.

Source: nanotron/logging (LogItem, human_format) and trainer.py, 2023 to 2025. Numbers carry three significant digits
and a decimal suffix, also where the key names a unit: 4.71K ms is 4.71 s, `hd_total_memory_tb: 2.13T` is 2.13e12 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from parlab.formats.grammar.cells import Cell, split_cells
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import STAMP, peel, strip_prefix
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.readings import amount, reading, united
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import normal, slug, to_float
from parlab.formats.launch import MAX_ARGUMENTS, typed

SIGNS: Signs = (
    (re.compile(r"\|DP=\d+\|PP=\d+\|TP=\d+[^\]]{0,80}\]: +iteration: \d+ */ *\d+ *\|"), 10),
    (re.compile(r"\[[A-Z]+\|DP=\d+\|PP=\d+\|TP=\d+"), 4),
    (re.compile(r"\belapsed_time_per_iteration_ms: \S+ \|"), 6),
)

_TAG = re.compile(r"\[[A-Z]{1,12}\|(?:[A-Z]{2}=\d{1,7}\|?){1,6}[^\]]{0,120}\]:\s?")
_START = re.compile(rf"{STAMP}(?:{_TAG.pattern})?\s*iteration: \d{{1,18}} */ *\d{{1,18}} *\|")
_STEP = re.compile(r"\s*iteration: (\d{1,18}) */ *(\d{1,18}) *(?:\||$)")
_MEMORY = re.compile(
    r"Memory usage: (\S{1,30}?)\.? +Peak allocated:? (\S{1,30}?)\.? +Peak reserved:? (\S{1,30}?)\.?(?:\s|$)"
)
_SETTING = re.compile(r"\s*(?:[A-Za-z]\w{0,60}=[A-Z]\w{0,60}\()*([a-z]\w{0,60})=([^=(){}\[\]]{1,200}?)[,)]*\s*$")
_WORLD = re.compile(r"^\s*(\w{1,30})=(\d{1,9})")
_HUMAN = re.compile(r"([+-]?[\d.]{1,20}(?:[eE][+-]?\d{1,4})?)([KMGTPE])")
_POWERS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_WORDS = frozenset({"eta", "time"})
_SETTINGS = frozenset(
    {"dp", "pp", "tp", "expert_parallel_size", "sequence_length", "train_steps", "micro_batch_size",
     "batch_accumulation_per_replica", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
     "num_key_value_heads", "vocab_size", "max_position_embeddings", "zero_stage", "pp_engine", "tp_mode", "dtype",
     "seed", "recompute_layer", "tie_word_embeddings"}
)  # fmt: skip


def human(text: str) -> float | None:
    """Parse a number as nanotron prints it: 4.71K -> 4710; return None for anything else."""
    match = _HUMAN.fullmatch(text)
    if match is None:
        return to_float(text)
    value = to_float(match[1])
    return None if value is None else normal(value, _POWERS[match[2]])


def _field(key: str) -> Field:
    if (known := known_to("nanotron").get(key)) is not None:
        return known.field(key)
    if key.endswith("_ms"):
        return Field(f"{slug(key.removesuffix('_ms'))}_s", key, "ms", 1e-3)
    return Field(slug(key), key)


def _step(line: int, rank: int | None, time: str | None, tagged: str) -> list[Record]:
    own = strip_prefix(tagged)[2]
    tag = _TAG.search(own[:400])
    text = own[tag.end() :] if tag else own
    match = _STEP.match(text)
    if match is None:
        return []
    printed_cells = split_cells(text[match.end() :])
    cells = [Cell(cell.key, cell.text, human(cell.text)) for cell in printed_cells if cell.key not in _WORDS]
    if not cells:
        return [unread(line, "an iteration without any value", text)]
    records = reading("step", line, cells, _field, iteration=int(match[1]), rank=rank, time=time)
    if records[0].kind == "step":
        records[0].values["total_iterations"] = float(match[2])
    return records


def _memory(line: int, rank: int | None, text: str, match: re.Match[str]) -> list[Record]:
    names = ("allocated_bytes", "max_allocated_bytes", "max_reserved_bytes")
    values: dict[str, float] = {}
    for name, text_amount in zip(names, match.groups(), strict=True):
        quantity = amount(text_amount)
        field = united(name, quantity[1]) if quantity else None
        if quantity is None or field is None or not field.name.endswith("_bytes"):
            return [unread(line, "not an amount of memory", text)]
        values[name] = normal(quantity[0], field.scale)
    fields = tuple(Field(name, name) for name in names)
    return [Record("memory", line, values, rank=rank, fields=fields, raw=match.groups())]


def _launch(line: int, settings: dict[str, Any]) -> Iterator[Record]:
    """Yield the settings once, before the first measurement."""
    if settings:
        yield Record("launch", line, data=dict(settings), opens=True)
        settings.clear()


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a nanotron log; yield launches, steps, memory and the end.

    A rank's coordinates (DP, PP, TP) do not give its number, so lines of several ranks for one iteration are one step.
    """
    settings: dict[str, Any] = {}
    repeats = Repeats(by_part(_START, _step))
    for line, rank, time, tagged in peel(lines):
        if "iteration" in tagged and (records := repeats.read(line, rank, time, tagged)):
            yield from _launch(line, settings)
            yield from records
            continue
        tag = _TAG.search(tagged[:400])
        text = tagged[tag.end() :] if tag else tagged
        memory = _MEMORY.search(text[:400])
        if memory:
            yield from _launch(line, settings)
            yield from _memory(line, rank, text, memory)
            continue
        setting = _SETTING.match(text[:400]) if tag else None
        if setting and setting[1] in _SETTINGS and len(settings) < MAX_ARGUMENTS:
            settings.setdefault(setting[1], typed(setting[2]))
        end = ending(text)
        if end:
            yield Record("end", line, data=end, rank=rank, time=time)
    yield from _launch(0, settings)
