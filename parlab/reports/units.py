"""Units of record fields, derived from their names, and display units of tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from parlab.charts.format import Unit, field_title, unit_for

PERCENT, PLAIN = "%", ""
# Suffix of a field -> unit of its value; the longest first.
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
"""Suffix of a field -> suffix of its title."""
_LEAST_IS_BEST = frozenset({"s", "ms", "B"})
# Units for the option unit=: name -> (base unit, factor).
_NAMED = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "min": ("s", 60.0), "h": ("s", 3600.0),
    "B": ("B", 1.0), "KiB": ("B", 2.0**10), "MiB": ("B", 2.0**20), "GiB": ("B", 2.0**30), "TiB": ("B", 2.0**40),
    "MB": ("B", 1e6), "GB": ("B", 1e9),
}  # fmt: skip


def unit_of(field: str) -> str:
    """Return the unit of a field: "s" for `step_time_s` and `timer.optimizer`; "" if the name implies none."""
    if field.startswith("timer."):
        return "s"
    return next((unit for ending, unit in _UNITS if field.endswith(ending)), PLAIN)


def title_of(field: str) -> str:
    """Return the heading of a field: `step_time_s` becomes `Step time`, `samples_per_s` becomes `Samples/s`."""
    name = field.removeprefix("figure.").removeprefix("argument.").removeprefix("timer.")
    for ending, title in _ENDINGS:
        if field.endswith(ending):
            return field_title(name.removesuffix(ending)) + title
    return field_title(name)


def least_is_best(field: str) -> bool | None:
    """Return whether smaller is better; None if the name does not imply it."""
    unit = unit_of(field)
    if unit in _LEAST_IS_BEST:
        return True
    return False if unit.endswith("/s") or unit == PERCENT else None


def shown_unit(field: str, values: Iterable[float | None], requested: str = "") -> Unit:
    """Return one display unit for all values of a field, or the requested one; raises ValueError if it is invalid."""
    base = unit_of(field)
    if requested:
        valid_units = {name for name, (of, _) in _NAMED.items() if of == base} | {base} - {PLAIN}
        if requested not in valid_units:
            remedy = f"use one of {', '.join(sorted(valid_units))}" if valid_units else "remove it"
            raise ValueError(f"invalid unit {requested!r} for {field}; {remedy}")
        factor = _NAMED[requested][1] if requested in _NAMED and requested != base else 1.0
        return Unit(factor, requested, base)
    if base in (PLAIN, PERCENT, "ms", "TFLOP/s"):
        return Unit(1.0, base, base)
    return unit_for(values, base)
