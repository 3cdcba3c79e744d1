"""Entries of the log of a Hugging Face Trainer: dictionaries in its output, objects in its files.

Beside the Trainer's own keys, those of TRL, Liger-Kernel, LLaMA-Factory and ms-swift.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import orjson

from parlab.formats.grammar.metric_fields import metric_field
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Field, Kind, Record, unread
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import LARGEST, duration_seconds, slug, to_float

# Python prints these without quotes, and parses them as names only.
_BARE = re.compile(r"(?<=: )-?(?:nan|inf)(?=[,}\]])")
_FRACTION = re.compile(r"(\d{1,15})/(\d{1,15})")
# Entries that place a step in the run; they are not measurements.
_PLACES = frozenset({"step", "global_step/max_steps", "current_steps", "total_steps"})
_OWN = re.compile(r"(?:train|eval|test|predict)_(?:\w{1,60}_)?(?:loss|runtime|samples_per_second|steps_per_second)")


def _value(content: Any) -> float | None:
    if isinstance(content, bool):
        return None
    if isinstance(content, int | float):
        return to_float(repr(content)) if abs(content) < LARGEST else None
    if not isinstance(content, str):
        return None
    value = to_float(content.removesuffix("%"))
    return duration_seconds(content) if value is None else value


def _field(key: str, content: Any) -> Field:
    """Return the field of an entry; a quantity with a path or unit (`memory(GiB)`) is named by the common table."""
    if (known := known_to("hf").get(key)) is not None:
        return known.field(key)
    if "/" in key or "(" in key:
        return metric_field(key)
    if isinstance(content, str) and key.endswith("_time"):
        return Field(f"{slug(key)}_s", key, "h:mm:ss")
    return Field(quantity_name(key), key)


def place(data: Mapping[Any, Any]) -> tuple[int | None, int | None]:
    """Return step and total of an entry that states them: `'global_step/max_steps': '12/94'` or `step`."""
    fraction = _FRACTION.fullmatch(str(data.get("global_step/max_steps", ""))[:40])
    if fraction:
        return int(fraction[1]), int(fraction[2])
    step, total = data.get("current_steps"), data.get("total_steps")
    if isinstance(step, int) and isinstance(total, int) and 0 <= step < 2**60 and 0 <= total < 2**60:
        return step, total
    step = data.get("step")
    return (step if type(step) is int and 0 <= step < 2**60 else None), None


def quantity_name(key: str) -> str:
    if (known := known_to("hf").get(key)) is not None:
        return known.quantity.name
    name = slug(key)
    return f"{name}_s" if name.endswith("_runtime") else name.replace("_per_second", "_per_s")


def entry(line: int, data: dict[str, Any], iteration: int | None) -> list[Record]:
    """Return the record of an entry of the log history: a step, an evaluation, or the totals at the end."""
    cells = [
        (Pair(key, str(content)[:80], "", _value(content)), _field(key[:80], content))
        for key, content in list(data.items())[:500]
        if isinstance(key, str) and key not in _PLACES and content is not None
    ]
    names = {field.name for cell, field in cells if cell.value is not None}
    kind: Kind = "step"
    if "train_runtime" in data:
        kind = "metrics"
    elif any(
        isinstance(key, str) and key.startswith(("eval_", "test_", "predict_")) and content is not None
        for key, content in data.items()
    ):
        kind = "validation"
    records = record_of(kind, line, None, iteration, cells)
    is_entry = kind != "step" or "loss" in data or (type(data.get("step")) is int and any(map(_is_speed, names)))
    return records if is_entry and names - {"epoch"} else [record for record in records if record.kind == "unread"]


def _is_speed(name: str) -> bool:
    """Return whether an entry without a loss states how fast its step was."""
    return name == "step_time_s" or name.endswith(("_per_s", "_per_s_per_gpu"))


def state(line: int, text: str) -> list[Record] | None:
    """Read trainer_state.json; None for other text."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("log_history"), list):
        return None
    settings = {
        ("per_device_train_batch_size" if name == "train_batch_size" else name): value
        for name, value in data.items()
        if isinstance(value, str | int | float) and name != "log_history"
    }
    records = [Record("launch", line, data=settings, opens=True)]
    total = to_float(str(data.get("max_steps")))
    for item in data["log_history"]:
        if not isinstance(item, dict):
            records.append(unread(line, "an entry of log_history that is not an object", str(item)[:200]))
            continue
        step = item.get("step")
        iteration = step if isinstance(step, int) and 0 <= step < 2**60 else None
        for record in entry(line, item, iteration):
            if record.kind == "step" and total is not None and total > 0:
                record.values["total_iterations"] = total
            records.append(record)
    return records


def _logged(data: dict[Any, Any]) -> bool:
    """Return whether a dictionary is a log entry of the Trainer."""
    is_step = "loss" in data or type(data.get("step")) is int
    return ("epoch" in data and is_step) or any(isinstance(key, str) and _OWN.fullmatch(key) for key in data)


def entries(line: int, rank: int | None, _: str | None, text: str) -> list[Record]:
    """Return the records of a dictionary, with step and total if it states them."""
    try:
        # An escape may be an unpaired surrogate, which cannot be encoded.
        data = ast.literal_eval(_BARE.sub("'nan'", text.replace("\\", "/")))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        signs = ("loss'", "_runtime'", "_loss'")
        return [unread(line, "a dictionary that cannot be read", text)] if any(w in text for w in signs) else []
    return placed(line, rank, data) if isinstance(data, dict) and _logged(data) else []


def placed(line: int, rank: int | None, data: dict[str, Any]) -> list[Record]:
    """Return the records of an entry that a rank printed, with step and total if it states them."""
    step, total = place(data)
    records = entry(line, data, step)
    for record in records:
        record.rank = rank
        if record.kind == "step" and total:
            record.values["total_iterations"] = float(total)
    return records
