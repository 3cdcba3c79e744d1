"""Numbers for people: three significant digits, SI prefixes, a narrow no-break space before the unit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

SPACE = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
"""Means: not measured."""
DIGITS = 3
PRINTED = 7
"""A number with more significant digits was computed, not printed."""

_SI = {-12: "p", -9: "n", -6: "\N{MICRO SIGN}", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_WITH_PREFIX = ("s", "B/s", "FLOP", "FLOP/s")
"""Units that take a prefix directly; counted units follow it after a space: 19.7 k tokens/s."""
_BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
_COUNTED = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

UNIT_FACTORS: dict[str, dict[str, float]] = {
    "": _COUNTED,
    "s": {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "min": 60.0, "h": 3600.0},
    "B": {
        "": 1.0,
        **{name: 1024.0**power for power, name in enumerate(_BINARY)},
        **{f"{prefix}B": factor for prefix, factor in _COUNTED.items() if prefix != "K"},
    },
    "%": {"": 1.0, "%": 1e-2},
}
"""Base unit -> accepted suffixes of a number -> factor to the base unit."""


class Unit(NamedTuple):
    """The unit of a whole column or axis: `displayed = value / factor`."""

    factor: float
    name: str
    base: str
    """The unit without a prefix."""
    decimals: int | None = None
    """Decimal places of all numbers of a column; None: so many significant digits of each."""


def _decade(value: float) -> int:
    """Return the power of ten of the first digit after rounding: 0.9996 rounds to 1.00, so 0."""
    return math.floor(math.log10(abs(float(f"{value:.{DIGITS - 1}e}"))))


def significant(value: float | None, digits: int = DIGITS) -> str:
    """Write a number with so many significant digits and grouped thousands: 6.64, 0.0123, 12,300; a dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    # From the shortest decimal form: 11.35 is slightly less in binary, but must round to 11.4.
    written = Decimal(repr(float(value)))
    rounded = written.quantize(Decimal(1).scaleb(written.adjusted() - digits + 1), ROUND_HALF_UP)
    decimals = max(0, digits - 1 - rounded.adjusted())
    return _grouped(f"{rounded:.{decimals}f}")


def printed_digits(value: float | None, unit: str = "") -> int:
    """Return the significant digits with which a file prints a number: 11.21 has 4; 3 for a computed number.

    `unit` is that of the value: bytes were mostly printed with a binary prefix.
    """
    if value is None or not math.isfinite(value) or not value:
        return DIGITS
    factors = [1024.0**power for power in range(len(_BINARY))] if unit == "B" else [1.0]
    # Scaling may add an error in the last of 17 digits.
    written = (Decimal(f"{value / factor:.12g}").normalize().as_tuple().digits for factor in factors)
    fewest = min(len(digits) for digits in written)
    return fewest if DIGITS < fewest <= PRINTED else DIGITS


def for_column(unit: Unit, values: Iterable[tuple[float | None, bool]]) -> Unit:
    """Return a unit with the decimal places of its column, of values and whether a file printed them.

    Numbers that need places more than four apart keep significant digits, since no number of places suits all.
    """
    places: list[tuple[int, int]] = []
    for value, is_printed in values:
        if value is None or not math.isfinite(value) or not value:
            continue
        digits = printed_digits(value, unit.base) if is_printed else DIGITS
        size = math.floor(math.log10(abs(float(f"{value / unit.factor:.{digits - 1}e}"))))
        places.append((size, digits - 1 - size))
    if not places:
        return unit
    largest = max(size for size, _ in places)
    decimals = max(0, *(decimals for _, decimals in places))
    if decimals - max(0, min(decimals for _, decimals in places)) > _WIDE or largest + decimals > _WIDEST:
        return unit._replace(decimals=None)
    return unit._replace(decimals=decimals)


_WIDE, _WIDEST = 4, 12
"""How far the places of two numbers of a column may differ, and how many digits its largest may have."""


def in_column(value: float | None, unit: Unit) -> str:
    """Write a number in the unit and with the decimal places of its column; a dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    if unit.decimals is None:
        return significant(value / unit.factor)
    written = Decimal(f"{value / unit.factor:.15g}").quantize(Decimal(1).scaleb(-unit.decimals), ROUND_HALF_UP)
    return _grouped(f"{written:f}")


def exact(value: float | None) -> str:
    """Write all digits of a number, as tooltips show them."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e16 else repr(float(value))


def _grouped(text: str) -> str:
    whole, dot, fraction = text.partition(".")
    sign = MINUS if whole.startswith("-") else ""
    digits = whole.removeprefix("-")
    digits = f"{int(digits):,}" if digits.isdecimal() else digits
    return sign + digits + dot + fraction


def unit_for(values: Iterable[float | None], unit: str) -> Unit:
    """Choose one unit for all these values, the one that suits their median.

    `unit` is "s" (prefixes down to ps), "B" (binary prefixes) or a counted unit such as "samples/s" (prefixes from k
    up).
    """
    present = sorted(abs(value) for value in values if value is not None and math.isfinite(value) and value)
    middle = present[len(present) // 2] if present else 2.0**30 if unit == "B" else 1.0
    if unit == "B":
        power = min(max(int(math.log2(middle) // 10), 0), len(_BINARY) - 1)
        return Unit(1024.0**power, _BINARY[power], unit)
    exponent = min(max(3 * (_decade(middle) // 3), -12), 18)
    if unit == "s":
        exponent = min(exponent, 0)
    elif exponent < 0 or (exponent == 3 and middle < 10_000):
        exponent = 0
    prefix = _SI[exponent]
    if not prefix:
        return Unit(1.0, unit, unit)
    return Unit(10.0**exponent, prefix + unit if unit in _WITH_PREFIX else f"{prefix}{SPACE}{unit}", unit)


def quantity(value: float | None, unit: str, digits: int = DIGITS) -> str:
    """Write a number with its unit: `6.64 s`, `8.23 GiB`, `19.7 k tokens/s`; a dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    chosen = unit_for([value], unit)
    return f"{significant(value / chosen.factor, digits)}{SPACE}{chosen.name}"


def signed_percent(share: float) -> str:
    """Write a change with its sign: 0.16 becomes `+16.0 %`."""
    return f"{share:+.1%}".replace("-", MINUS).replace("%", f"{SPACE}%")


def signed_range(low: float, high: float) -> str:
    """Write the ends of a range of changes with one unit: `+15.8 to +16.1 %`."""
    return f"{signed_percent(low).removesuffix(f'{SPACE}%')} to {signed_percent(high)}"


def exact_quantity(value: float | None, unit: str) -> str:
    """Write all digits with the base unit."""
    return DASH if value is None or not math.isfinite(value) else f"{exact(value)}{SPACE}{unit}"


def probability(value: float) -> str:
    """Write a probability: below 1 and above 99 % as such, since no prediction is certain."""
    percent = 100 * value
    return f"> 99{SPACE}%" if percent > 99 else f"< 1{SPACE}%" if percent < 1 else f"{percent:.0f}{SPACE}%"


def in_sentence(title: str) -> str:
    """Write a title inside a sentence: `peak memory (GiB)`, but `MFU (%)`."""
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def duration(seconds: float | None, *, coarse: bool = False) -> str:
    """Write a duration: `8 s`, `3 min 20 s`, `2 h 5 min`; coarse: `3 min`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    whole = max(0, round(seconds))
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            big, rest = divmod(whole, size)
            tail = f" {rest // small}{SPACE}{small_name}" if rest // small and not coarse else ""
            return f"{big:,}{SPACE}{name}{tail}"
    return f"{whole}{SPACE}s"


def field_title(field: str) -> str:
    """Return a field or axis as a heading: `train.micro_batch_size` becomes `Micro batch size`."""
    title = field.rpartition(".")[2].replace("_", " ").strip()
    if title.startswith("gpu"):
        return title.replace("gpu", "GPU", 1)
    if title.startswith("zero "):
        return title.replace("zero", "ZeRO", 1)
    return title[:1].upper() + title[1:] if title else field


def field_label(field: str) -> str:
    """Return a field or axis for the middle of a sentence: `micro batch size`, `GPUs`."""
    title = field_title(field)
    return title if title[:2].isupper() or title.startswith("ZeRO") else title[:1].lower() + title[1:]


def field_value(value: object) -> str:
    """Write an axis or configuration value: no quotes, `none` for None."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)
