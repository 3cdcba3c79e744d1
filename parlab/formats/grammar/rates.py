"""Rates and times per step as people write them: `tok/s`, `images per second`, `12.3k tokens/s/GPU`, `Gtok/day`."""

from __future__ import annotations

import re
from functools import lru_cache

_THINGS = {
    "tokens_per_s": r"tok(?:en)?s?",
    "samples_per_s": r"samples?|seqs?|sequences?|examples?|imgs?|images?|sents?|sentences?|records?",
    "steps_per_s": r"(?:global_)?steps?|its?|iters?|iterations?|updates?|upds?|batch(?:es)?",
    "words_per_s": r"words?",
    "requests_per_s": r"req(?:uest)?s?",
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_POWERS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_PERIOD = r"(?:s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?)"
_STEP = r"(?:global_step|it|iter|iteration|step|batch|update|tick)"
_EACH = r"(?:gpu|device|chip|core|npu|worker|rank)"
_PER = r"(?:\s?/\s?|[\s_]per[\s_])"
_ALL = "|".join(_THINGS.values())
PATTERN = (
    rf"(?:[kKMBGT]\s?)?(?:{_ALL})(?:{_PER}{_EACH})?{_PER}{_PERIOD}(?:{_PER}{_EACH})?"
    rf"|(?:[num]s|µs|s|secs?|seconds?|mins?|minutes?){_PER}{_STEP}"
)
"""A unit that makes its number a rate or the time of a step; to be used without regard to case."""

_RATE = re.compile(
    rf"(?:(?P<power>[kmbgt])\s?)?(?:{'|'.join(f'(?P<{name}>{pattern})' for name, pattern in _THINGS.items())})"
    rf"(?P<first>{_PER}{_EACH})?{_PER}(?P<period>{_PERIOD})(?P<each>{_PER}{_EACH})?",
    re.IGNORECASE,
)
_TIME = re.compile(rf"(?P<unit>[num]s|µs|s|secs?|seconds?|mins?|minutes?){_PER}{_STEP}", re.IGNORECASE)
_EACH_OF = re.compile(rf"(?i)\b{_EACH}\b")
# Words that make another quantity of the same rate.
_QUALIFIER = re.compile(
    r"(?i)(?<![a-z])(prompt|prefill|gen|generation|decode|eval|val|validation|test|peak|max|min|input|output|rollout"
    r"|data|load|read)(?:uation)?(?![a-z])"
)
_KEY = re.compile(rf"(?P<words>(?:[A-Za-z][\w()]*\s){{0,4}})(?P<rate>{PATTERN})", re.IGNORECASE)


@lru_cache(maxsize=4096)
def rate_of(unit: str) -> tuple[str, float] | None:
    """Return quantity and factor of a unit: `k tok/s` -> tokens_per_s, 1000; None for any other unit."""
    if match := _TIME.fullmatch(unit):
        return "step_time_s", _seconds(match["unit"])
    match = _RATE.fullmatch(unit)
    if match is None:
        return None
    name = next(name for name in _THINGS if match[name])
    power = _POWERS[match["power"].lower()] if match["power"] else 1.0
    return (f"{name}_per_gpu" if match["first"] or match["each"] else name), power / _seconds(match["period"])


def _seconds(unit: str) -> float:
    """Return the seconds of a unit of time: `ms`, `min`, `hours`, `day`."""
    unit = unit.lower()
    return _SECONDS.get(unit) or _SECONDS.get(unit[0], 1.0)


@lru_cache(maxsize=4096)
def rate_field(key: str, unit: str) -> tuple[str, float] | None:
    """Return quantity and factor of a cell whose unit, or whose key, is a rate; None for any other cell.

    `gen throughput` in tokens/s is another quantity than the throughput: gen_tokens_per_s.
    """
    rate = rate_of(unit) if unit else None
    label = key
    if rate is None and unit.lower() in ("", "k", "m") and (match := _KEY.fullmatch(key)):
        rate, label = rate_of(match["rate"]), match["words"]
        if rate is not None and unit:
            rate = rate[0], rate[1] * _POWERS[unit.lower()]
    if rate is None:
        return None
    name, scale = rate
    if not name.endswith("_per_gpu") and name.endswith("_per_s") and label != unit and _EACH_OF.search(label):
        name = f"{name}_per_gpu"
    qualifier = _QUALIFIER.search(label) if label != unit else None
    return (f"{qualifier[1].lower()}_{name}" if qualifier else name), scale
