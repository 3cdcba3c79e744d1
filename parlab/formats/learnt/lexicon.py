"""The quantities that a person can give to the slots of a learnt format, and the units in which slots print them."""

from __future__ import annotations

from typing import NamedTuple

from parlab.formats.grammar.quantities import QUANTITIES as TABLE
from parlab.formats.grammar.quantities import Quantity
from parlab.formats.grammar.units import GIB, KIB, MIB

TIME, BYTES, FLOPS, SHARE, RATE, PLAIN = "time", "memory", "FLOP/s", "share", "rate", "number"

UNITS: dict[str, dict[str, float]] = {
    TIME: {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    BYTES: {"B": 1.0, "KiB": KIB, "MiB": MIB, "GiB": GIB, "kB (1000)": 1e3, "MB (1000²)": 1e6, "GB (1000³)": 1e9},
    FLOPS: {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    SHARE: {"0 to 1": 1.0, "%": 0.01},
    RATE: {"per second": 1.0, "thousand per second": 1e3, "million per second": 1e6},
    PLAIN: {"as printed": 1.0},
}
"""Dimension -> unit -> factor to the normal unit."""


class Offered(NamedTuple):
    title: str
    dimension: str


_DIMENSIONS = {"s": TIME, "bytes": BYTES, "FLOP/s": FLOPS}
"""Unit of a quantity -> dimension; a unit with another `/s` is a rate."""


def _dimension(quantity: Quantity) -> str:
    if quantity.name == "mfu":
        return SHARE
    return _DIMENSIONS.get(quantity.unit) or (RATE if quantity.unit.endswith("/s") else PLAIN)


QUANTITIES: dict[str, Offered] = {
    quantity.name: Offered(quantity.title.removeprefix("T") if quantity.unit == "FLOP/s" else quantity.title,
                           _dimension(quantity))
    for quantity in TABLE if quantity.title
}  # fmt: skip
"""Normal name -> what a person reads. A quantity with another name is stored and drawn under that name."""


def dimension_of(name: str) -> str:
    """Return the dimension of a normal name: of the lexicon, else by its suffix."""
    if name in QUANTITIES:
        return QUANTITIES[name].dimension
    for suffix, dimension in (("_per_s", RATE), ("_per_s_per_gpu", RATE), ("_bytes", BYTES), ("_s", TIME)):
        if name.endswith(suffix):
            return dimension
    return FLOPS if name.endswith(("_flops", "flops_per_gpu")) else PLAIN


def unit_name(name: str, scale: float) -> str:
    """Return the unit of a quantity with this factor; the factor itself where no unit has it."""
    return next((unit for unit, factor in UNITS[dimension_of(name)].items() if factor == scale), f"times {scale:g}")
