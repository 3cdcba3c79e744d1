"""The figures of an experiment by the names that pages and reports have for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import efficiency, heatmap, memory, phases, roofline, throughput, utilisation
from .measures import Options
from .points import RunPoint
from .theme import Drawing

EXPERIMENT_FIGURES: dict[str, Callable[[Sequence[RunPoint]], Drawing]] = {
    "throughput": throughput.figure,
    "ms-per-sample": throughput.per_sample,
    "memory": memory.figure,
    "phases": phases.figure,
    "utilisation": utilisation.figure,
    "efficiency": efficiency.figure,
    "heatmap": heatmap.figure,
    "roofline": roofline.figure,
}

CHOSEN: dict[str, Callable[[Sequence[RunPoint], Options], Drawing]] = {
    "throughput": throughput.figure,
    "ms-per-sample": throughput.per_sample,
    "memory": memory.figure,
    "phases": phases.figure,
    "efficiency": efficiency.figure,
    "heatmap": heatmap.figure,
    "roofline": roofline.figure,
}
"""Those whose axes a person may choose."""
