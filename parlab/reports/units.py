"""What a field of a record is measured in, by its name, and the unit that a table shows it in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from parlab.charts.format import Unit, field_title, unit_for

PERCENT, PLAIN = "%", ""
# Ending of a field -> unit of its value; the longest first.
_UNITS = (
    ("samples_per_s", "samples/s"),
    ("tokens_per_s", "tokens/s"),
    ("tflops_per_gpu", "TFLOP/s"),
    ("ms_per_sample", "ms"),
    ("_bytes", "B"),
    ("_pct", PERCENT),
    ("_per_s", "/s"),
    ("_ms", "ms"),
    ("_s", "s"),
)
_ENDINGS = (
    ("tflops_per_gpu", "TFLOP/s per GPU"), ("_pct", " %"), ("_per_s", "/s"), ("_bytes", ""), ("_ms", ""), ("_s", ""),
)  # fmt: skip
"""Ending of a field -> what stands for it in a title."""
_LEAST_IS_BEST = frozenset({"s", "ms", "B"})
# Units that a person may ask for: name -> (base unit, factor).
_NAMED = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "min": ("s", 60.0), "h": ("s", 3600.0),
    "B": ("B", 1.0), "KiB": ("B", 2.0**10), "MiB": ("B", 2.0**20), "GiB": ("B", 2.0**30), "TiB": ("B", 2.0**40),
    "MB": ("B", 1e6), "GB": ("B", 1e9),
}  # fmt: skip


def unit_of(field: str) -> str:
    """Name the unit of a field's values: `step_time_s` is in s, `timer.optimizer` too; "" where the name says none."""
    if field.startswith("timer."):
        return "s"
    return next((unit for ending, unit in _UNITS if field.endswith(ending)), PLAIN)


def title_of(field: str) -> str:
    """Name a field as a heading: `step_time_s` becomes `Step time`, `samples_per_s` `Samples/s`."""
    name = field.removeprefix("figure.").removeprefix("argument.").removeprefix("timer.")
    for ending, title in _ENDINGS:
        if field.endswith(ending):
            return field_title(name.removesuffix(ending)) + title
    return field_title(name)


def least_is_best(field: str) -> bool | None:
    """Say whether less is better; None where nobody can tell from the name."""
    unit = unit_of(field)
    if unit in _LEAST_IS_BEST:
        return True
    return False if unit.endswith("/s") or unit == PERCENT else None


def shown_unit(field: str, values: Iterable[float | None], wanted: str = "") -> Unit:
    """Choose the one unit for all values of a field, or take the wanted one; raises ValueError where that is none."""
    base = unit_of(field)
    if wanted:
        known = {name for name, (of, _) in _NAMED.items() if of == base} | {base} - {PLAIN}
        if wanted not in known:
            there = ", ".join(sorted(known)) or "none: leave it out"
            raise ValueError(f"unit {wanted!r} does not fit {field}; there are {there}")
        factor = _NAMED[wanted][1] if wanted in _NAMED and wanted != base else 1.0
        return Unit(factor, wanted, base)
    if base in (PLAIN, PERCENT, "ms", "TFLOP/s"):
        return Unit(1.0, base, base)
    return unit_for(values, base)
