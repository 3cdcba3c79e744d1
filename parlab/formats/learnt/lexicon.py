"""The quantities that a person can give to the slots of a learnt format, and the units in which slots print them."""

from __future__ import annotations

from typing import NamedTuple

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


class Quantity(NamedTuple):
    title: str
    dimension: str


QUANTITIES: dict[str, Quantity] = {
    "step_time_s": Quantity("Step time", TIME),
    "samples_per_s": Quantity("Samples/s", RATE),
    "tokens_per_s": Quantity("Tokens/s", RATE),
    "tokens_per_s_per_gpu": Quantity("Tokens/s per GPU", RATE),
    "steps_per_s": Quantity("Steps/s", RATE),
    "flops_per_gpu": Quantity("FLOP/s per GPU", FLOPS),
    "mfu": Quantity("MFU", SHARE),
    "max_allocated_bytes": Quantity("Peak memory", BYTES),
    "allocated_bytes": Quantity("Memory", BYTES),
    "max_reserved_bytes": Quantity("Reserved memory, peak", BYTES),
    "loss": Quantity("Loss", PLAIN),
    "grad_norm": Quantity("Gradient norm", PLAIN),
    "learning_rate": Quantity("Learning rate", PLAIN),
    "global_batch_size": Quantity("Global batch size", PLAIN),
    "consumed_samples": Quantity("Consumed samples", PLAIN),
    "elapsed_s": Quantity("Time since the start", TIME),
}
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
