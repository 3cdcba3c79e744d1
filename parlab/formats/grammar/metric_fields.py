"""Fields of cells that name their quantity: the table of quantities and the printed unit decide."""

from __future__ import annotations

import re
from functools import lru_cache

from parlab.formats.grammar.quantities import BY_NAME, known_name
from parlab.formats.grammar.rates import rate_field, rate_of
from parlab.formats.grammar.records import Field
from parlab.formats.grammar.units import slug, unit_of, united
from parlab.formats.schema import Kind

_BRACKET = re.compile(r"^(.*?)\s*\(([^()]{1,40})\)\s*$")
_AVERAGE = re.compile(
    r"(?i)(?<![a-z])(?:\(?(?:actual|running|moving)[ _]?(?:avg|average|mean)\)?|avg|averaged?|overall|ema|smoothed)"
    r"(?![a-z])"
)
_AVERAGED = frozenset({"s", "samples/s", "tokens/s", "steps/s", "FLOP/s"})
_TIMING = re.compile(r"^timing_(s|ms)/(.+)")
_PER_STEP = re.compile(r"(?i)(?:wall|time|elapsed)(?:/|_per_)(?:it|iter|iteration|step|batch|update)")
# Names of figures on held-out data.
HELD_OUT = re.compile(r"(?i)^(?:val(?:id(?:ation)?)?|eval(?:uation)?|test)[\s_/-](?!step_timing)")
_PARAMETERS = re.compile(r"(?i)\bparam(?:eter)?s?\b")
_SIZES = frozenset("KMG")
# Powers of ten behind a number; B is one of counts, and bytes of memory.
POWERS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_OF_BYTES = re.compile(r"(?i)mem|bytes|alloc|reserv|vram|cache|buffer|used|free|peak|disk|size of|payload")
# A unit at the end of a name: `fwd_ms`, `cache_GiB`.
_KEY_UNIT = re.compile(r"(.+?)[_ (\[]+(ns|us|ms|[KMGT]i?B)[)\]]?$", re.IGNORECASE)
_COUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MINUTES = re.compile(r"(?i)time|eta|elapsed|remaining")
# Times of a step by their names, which state no unit by themselves; and names that do.
TIMES = frozenset({"step_time_s", "average_step_time_s"})
SAYS_UNIT = re.compile(r"(?i)sec|ms\b|_s$|\(s\)|\bs\b")
# Times of the whole run, not of a phase of a step.
CLOCKS = frozenset({"eta_s", "elapsed_s", "elapsed_time_s", "remaining_s", "remaining_time_s", "total_time_s", "wall_s",
                    "train_wall_s", "time_elapsed_s", "train_runtime_s", "total_s"})  # fmt: skip


@lru_cache(maxsize=8192)
def metric_field(key: str, unit: str = "") -> Field:
    """Return the field of a cell: `dt`, `ms` -> step_time_s; an unknown name becomes its slug."""
    field = _metric_field(key, unit)
    if (average := _average_field(key, field)) is not None:
        return average
    return field._replace(kind="cumulative") if field.name in CLOCKS else field


def _average_field(key: str, field: Field) -> Field | None:
    """Return the field of an average of a time or rate, which is another quantity than that of a step."""
    words = _AVERAGE.search(key)
    if words is None:
        return None
    kind: Kind = "smoothed" if words[0].lower() in ("ema", "smoothed") else "average"
    rest = " ".join((key[: words.start()] + " " + key[words.end() :]).split()).strip(" _-./")
    plain_field = _metric_field(rest, field.unit) if rest else field
    quantity = BY_NAME.get(plain_field.name)
    if quantity is None or (quantity.unit not in _AVERAGED and quantity.name != "mfu"):
        return field._replace(kind=kind) if field.name.endswith(("_s", "_per_s")) else None
    name = quantity.name if quantity.kind == "average" else f"average_{quantity.name}"
    return plain_field._replace(name=name, key=key, kind=kind)


def _metric_field(key: str, unit: str) -> Field:
    bracket = _BRACKET.match(key)
    base = bracket[1] if bracket else key
    # `D(x)` is no ratio.
    if bracket and not unit and bracket[2] != "x" and (unit_of(bracket[2]) or rate_of(bracket[2])):
        unit = bracket[2]
    if (rate := rate_field(base, unit)) is not None:
        known = known_name(f"{base} {unit}")
        name = known.quantity.name if known is not None and known.quantity.kind == "average" else rate[0]
        return Field(name, key, unit, rate[1], "average" if name != rate[0] else "printed")
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
    if unit in _SIZES and (memory := known_name(f"{base} {unit}iB")) and memory.quantity.unit == "bytes":
        return _named(key, base, f"{unit}iB")
    return None


def _named(key: str, base: str, unit: str) -> Field:
    """Return the field of a name in the table of quantities, or of the name itself."""
    if unit in POWERS and not (unit == "B" and _OF_BYTES.search(base)):
        plain_field = _named(key, base, "")
        return plain_field._replace(unit=unit, scale=plain_field.scale * POWERS[unit])
    if unit == "%":
        share = known_name(base)
        is_mfu = share is not None and share.quantity.name == "mfu"
        return Field("mfu", key, unit, 0.01) if is_mfu else united(base, unit)._replace(key=key)
    known = known_name(f"{base} {unit}") if unit else None
    if known is None and unit and (printed := unit_of(unit)) is not None:
        known = known_name(base)
        if known is None or (known.quantity.unit, known.quantity.per) != _DIMENSIONS.get(
            printed[0], (printed[0], known.quantity.per)
        ):
            return _flops(united(base, unit)._replace(key=key), unit)
        return known._replace(unit=unit, scale=printed[1]).field(key)
    known = known or known_name(key) or known_name(base)
    if known is None and not unit and (own := _KEY_UNIT.match(key)) is not None:
        base, unit = own.groups()
    if known is None:
        return united(base, unit)._replace(key=key)
    return known._replace(unit=unit or known.unit).field(key)


# Dimension of a printed unit -> unit of a quantity, where they have different names.
_DIMENSIONS = {"flops_per_gpu": "FLOP/s"}


def _flops(field: Field, unit: str) -> Field:
    """Name FLOP/s per GPU plainly, whatever the key is: `GPU utilization: 58.2TFLOP/s/GPU`."""
    if field.key == unit and field.name.endswith("_flops"):
        return field._replace(name="flops")
    return field._replace(name="flops_per_gpu") if unit_of(unit) == ("flops_per_gpu", 1e12) else field
