"""Fields of cells that name their quantity: the names of other tools (`names.py`) and the printed unit decide."""

from __future__ import annotations

import re
from functools import lru_cache

from parlab.formats.grammar.names import quantity_of_metric
from parlab.formats.grammar.quantities import slug, unit_of
from parlab.formats.grammar.rates import rate_field, rate_of
from parlab.formats.grammar.readings import united
from parlab.formats.grammar.records import Field

_SHARED = {"tflops_per_gpu": ("flops_per_gpu", 1e12), "memory_peak_bytes": ("max_allocated_bytes", 1.0),
           "memory_reserved_bytes": ("max_reserved_bytes", 1.0),
           "memory_active_bytes": ("max_active_bytes", 1.0)}  # fmt: skip
_BRACKET = re.compile(r"^(.*?)\s*\(([^()]{1,40})\)\s*$")
_TIMING = re.compile(r"^timing_(s|ms)/(.+)")
_PER_STEP = re.compile(r"(?i)(?:wall|time|elapsed)(?:/|_per_)(?:it|iter|iteration|step|batch|update)")
# Names of figures on held-out data.
HELD_OUT = re.compile(r"(?i)^(?:val(?:id(?:ation)?)?|eval(?:uation)?|test)[\s_/]")
_PARAMETERS = re.compile(r"(?i)\bparam(?:eter)?s?\b")
_SIZES = frozenset("KMG")
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MINUTES = re.compile(r"(?i)time|eta|elapsed|remaining")
# Times of the whole run, not of a phase of a step.
CLOCKS = frozenset({"eta_s", "elapsed_s", "elapsed_time_s", "remaining_s", "remaining_time_s", "total_time_s", "wall_s",
                    "train_wall_s", "time_elapsed_s", "train_runtime_s", "total_s"})  # fmt: skip


@lru_cache(maxsize=8192)
def metric_field(key: str, unit: str = "") -> Field:
    """Return the field of a cell: `dt`, `ms` -> step_time_s; an unknown name becomes its slug."""
    bracket = _BRACKET.match(key)
    base = bracket[1] if bracket else key
    if bracket and not unit and (unit_of(bracket[2]) or rate_of(bracket[2])):
        unit = bracket[2]
    if (rate := rate_field(base, unit)) is not None:
        return Field(rate[0], key, unit, rate[1])
    if (printed := _printed_field(key, base, unit)) is not None:
        return printed
    field = _named(key, base, unit)
    # A rate of something else is no time.
    if not unit and field.name.endswith("_s") and base.lower().endswith(("/s", "/sec", "/second")):
        return field._replace(name=f"{slug(base.rpartition('/')[0])}_per_s")
    return field


def _printed_field(key: str, base: str, unit: str) -> Field | None:
    """Return the field of a name whose form or unit says what it is."""
    timing = _TIMING.match(base)
    if timing and timing[2] != "step":
        return Field(f"{slug(timing[2])}_s", key, timing[1], 1e-3 if timing[1] == "ms" else 1.0)
    if _PER_STEP.fullmatch(base) and (printed := unit_of(unit)) is not None and printed[0] == "s":
        return Field("step_time_s", key, unit, printed[1])
    if unit in _COUNTS and _PARAMETERS.search(base):
        return Field("parameters", key, unit, _COUNTS[unit])
    if unit == "m" and _MINUTES.search(base):
        return Field(f"{slug(base)}_s", key, unit, 60.0)
    if unit in _SIZES and (memory := quantity_of_metric(f"{base} {unit}iB")) and memory.name.endswith("_bytes"):
        return _named(key, base, f"{unit}iB")
    return None


def _named(key: str, base: str, unit: str) -> Field:
    if unit == "%" and (share := quantity_of_metric(base)) is not None and share.name == "mfu":
        return Field("mfu", key, unit, 0.01)
    quantity = quantity_of_metric(f"{base} {unit}") if unit not in ("", "%") else None
    if quantity is None and unit and (printed := unit_of(unit)) is not None:
        quantity = quantity_of_metric(base)
        if quantity is None or not quantity.name.endswith((f"_{printed[0]}", f"_{printed[0]}_per_gpu")):
            return _flops(united(base, unit)._replace(key=key), unit)
        quantity = quantity._replace(scale=printed[1])
    elif quantity is None:
        quantity = quantity_of_metric(key) or quantity_of_metric(base)
    if quantity is None:
        return united(base, unit)._replace(key=key)
    name, scale = _SHARED.get(quantity.name, (quantity.name, 1.0))
    return Field(name, key, unit, quantity.scale if unit and unit_of(unit) else quantity.scale * scale)


def _flops(field: Field, unit: str) -> Field:
    """Name FLOP/s per GPU plainly, whatever the key is: `GPU utilization: 58.2TFLOP/s/GPU`."""
    return field._replace(name="flops_per_gpu") if unit_of(unit) == ("flops_per_gpu", 1e12) else field
