"""Numbers and units: conversion of keys, units and texts to normal units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

import orjson

from parlab.formats.grammar.records import Field

# Larger numbers are rejected, so that products and sums stay finite.
LARGEST = 1e100
KIB, MIB, GIB = 2**10, 2**20, 2**30

# Unit as printed -> (suffix of the normal name, factor). Sizes printed with decimal names by torch and DeepSpeed
# (MB, GB) are binary; readers of tools with decimal units (nccl-tests, network cards) convert these themselves.
UNITS: dict[str, tuple[str, float]] = {
    "ns": ("s", 1e-9), "us": ("s", 1e-6), "µs": ("s", 1e-6), "μs": ("s", 1e-6), "ms": ("s", 1e-3),
    "milliseconds": ("s", 1e-3), "microseconds": ("s", 1e-6),
    "s": ("s", 1.0), "sec": ("s", 1.0), "secs": ("s", 1.0), "second": ("s", 1.0), "seconds": ("s", 1.0),
    "min": ("s", 60.0), "mins": ("s", 60.0), "minutes": ("s", 60.0), "h": ("s", 3600.0), "hours": ("s", 3600.0),
    "b": ("bytes", 1.0), "bytes": ("bytes", 1.0), "kib": ("bytes", KIB), "mib": ("bytes", MIB), "gib": ("bytes", GIB),
    "kb": ("bytes", KIB), "mb": ("bytes", MIB), "gb": ("bytes", GIB), "tib": ("bytes", 2**40), "tb": ("bytes", 2**40),
    "%": ("pct", 1.0), "gbps": ("bits_per_s", 1e9), "gbit/s": ("bits_per_s", 1e9), "mbps": ("bits_per_s", 1e6),
    "tflop/s": ("flops", 1e12), "tflops": ("flops", 1e12), "pflop/s": ("flops", 1e15), "pflops": ("flops", 1e15),
    "gflop/s": ("flops", 1e9), "gflops": ("flops", 1e9),
    "tflop/s/gpu": ("flops_per_gpu", 1e12), "tflops/gpu": ("flops_per_gpu", 1e12),
    "tflop/s/device": ("flops_per_gpu", 1e12),
    "j/iter/gpu": ("joules_per_gpu", 1.0), "w": ("watts", 1.0), "x": ("ratio", 1.0),
}  # fmt: skip

# Bounded, and never a part of a longer number: `1.2.3` does not match, and a long line of digits is not slow.
_NUMBER = (
    r"(?<![\d.])[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?!\d)(?:\.\d{0,40})?|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})"
    r"(?:[eE][+-]?\d{1,4})?(?!\.?\d)"
)
NUMBER = re.compile(_NUMBER)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3}){1,6}(?:\.\d{0,40})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SUFFIX = re.compile(r"^(.*?)\s*[(\[]([^()\[\]]{1,16})[)\]]\s*$")
_SLUG = re.compile(r"[^a-z0-9]+")


def normal(value: float, scale: float) -> float:
    """Scale a printed value without rounding errors: 58.16 ms become 0.05816 s, not 0.058159999999999996."""
    return value * scale if scale >= 1.0 else value / round(1.0 / scale)


def factors(scale: float) -> tuple[float, float]:
    """Return the multiplier and the divisor with which `normal` scales: value * multiplier / divisor."""
    return (scale, 1.0) if scale >= 1.0 else (1.0, float(round(1.0 / scale)))


def to_float(text: str) -> float | None:
    """Parse a number, also `1,234.5`; return None for other texts, nan, inf, 1_000, 1,2 and numbers beyond LARGEST."""
    try:
        value = float(text)
    except ValueError:
        if not _GROUPED.fullmatch(text):
            return None
        value = float(text.replace(",", ""))
    if not -LARGEST < value < LARGEST or "_" in text or not text.isascii():
        return None
    return value


def floats(texts: Sequence[str]) -> list[float]:
    """Convert texts of plain numbers, those of a list at once; raise ValueError if one of them is none.

    Of a list with a text that JSON does not know (`1.`, `+2`, `007`), each text is converted on its own.
    """
    if len(texts) == 1:
        text = texts[0]
        if "_" in text or not text.isascii():
            raise ValueError(f"{text} is no plain number")
        return [float(text)]
    if texts:
        try:
            numbers = orjson.loads(f"[{','.join(texts)}]")
        except orjson.JSONDecodeError:
            return _each_float(texts)
        if len(numbers) == len(texts) and _JSON_NUMBERS.issuperset(map(type, numbers)):
            return [*map(float, numbers)]
    return _each_float(texts)


_JSON_NUMBERS = {int, float}


def _each_float(texts: Sequence[str]) -> list[float]:
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        raise ValueError("1_000 and digits of other scripts are no plain numbers")
    return [*map(float, texts)]


def to_int(text: str) -> int | None:
    """Parse an integer of at most 18 digits, also `1,234`; return None for anything else."""
    text = text.strip()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    return int(text) if _WHOLE.fullmatch(text) else None


_CLOCK = re.compile(r"(?:(-?\d{1,6}) days?, )?(?:(\d{1,6}):)?(\d{1,4}):(\d\d(?:\.\d{1,9})?)")
_PARTS = re.compile(r"(?:(\d{1,6})d\s?)?(?:(\d{1,6})h\s?)?(?:(\d{1,6})m(?:in)?\s?)?(?:(\d{1,6}(?:\.\d{1,9})?)s)?")


def duration_seconds(text: str) -> float | None:
    """Parse `1 day, 2:03:04.5`, `18:26` (minutes and seconds) or `2h 5m 59s`; None for anything else."""
    text = text.strip()[:80]
    match = _CLOCK.fullmatch(text) or (_PARTS.fullmatch(text) if text[:1].isdigit() else None)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slug(text: str) -> str:
    """Convert a text to an identifier: `params norm` -> params_norm."""
    return _SLUG.sub("_", text[:200].lower()).strip("_")[:80] or "unnamed"


def unit_of(unit: str) -> tuple[str, float] | None:
    """Return (suffix of the normal name, factor) of a printed unit, or None if it is unknown."""
    return None if unit == "b" else UNITS.get(unit.lower())


@lru_cache(maxsize=4096)
def field_for(key: str) -> Field:
    """Return the field of a key with its unit in brackets: `elapsed time (ms)` -> elapsed_time_s."""
    match = _SUFFIX.match(key)
    return united(match[1], match[2])._replace(key=key) if match else Field(slug(key), key)


@lru_cache(maxsize=4096)
def united(key: str, unit: str) -> Field:
    """Return the field of a key whose unit follows the value: `Forward`, `ms` -> forward_s."""
    normal_unit = unit_of(unit)
    if normal_unit is None:
        return Field(slug(f"{key} {unit}") if unit else slug(key), key, unit)
    suffix, scale = normal_unit
    name = slug(key)
    return Field(name if name.endswith(f"_{suffix}") else f"{name}_{suffix}", key, unit, scale)


LATEST = 1e11
"""No time stamp in Unix seconds is later."""
_UNIX = re.compile(r"1\d{9}(?:\.\d{1,9})?")
_STAMPS = ("%m/%d/%Y %H:%M:%S", "%Y_%m_%d %H:%M:%S")


@lru_cache(maxsize=64)
def unix_time(text: str) -> float | None:
    """Parse a printed time stamp to Unix seconds, as UTC if it has no time zone; None for anything else."""
    if _UNIX.fullmatch(text):
        return float(text)
    text = text.strip()[:40].replace("/", "-", 2) if text[:4].isdecimal() else text.strip()[:40]
    moment: datetime | None = None
    try:
        moment = datetime.fromisoformat(text.replace("_", "T", 1))
    except ValueError:
        for form in _STAMPS:
            try:
                moment = datetime.strptime(text, form)
                break
            except ValueError:
                continue
    if moment is None:
        return None
    try:
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
    return seconds if 0 <= seconds < LATEST else None
