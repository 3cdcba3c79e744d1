"""The figures of an experiment by the names that pages and reports have for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import memory, phases, throughput, utilisation
from .points import RunPoint
from .theme import Drawing

EXPERIMENT_FIGURES: dict[str, Callable[[Sequence[RunPoint]], Drawing]] = {
    "throughput": throughput.figure,
    "memory": memory.figure,
    "phases": phases.figure,
    "utilisation": utilisation.figure,
}
