"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(NamedTuple):
    """A value with its labels; `suffix` is `_bucket`, `_sum` or `_count` of a histogram."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """All samples of a metric. A name without a type of its own would be untyped."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: list[Sample]


def exposition(families: Iterable[Family]) -> str:
    """Return the text of metrics; those without samples are left out."""
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for value, labels, suffix in family.samples:
        named = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
        yield f"{family.name}{suffix}{f'{{{named}}}' if named else ''} {_sample_value(value)}"


def _sample_value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
