"""The environment of an attempt in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.charts.format import DASH
from parlab.lab.selectors.runs import flat

_NAMES = {
    "links.why_not": "Why links cannot be shaped",
    "links.has_netem": "Kernel can shape links",
    "cpu_model": "Processor",
    "cpu_cores": "Cores",
    "gpus": "GPUs",
    "gpus_used": "GPUs used",
    "git_revision": "Git revision",
    "shell": "Command",
}
_AS_WRITTEN = ("variables.", "packages.")
"""Names that others gave: of variables and packages."""


def environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was recorded of an environment, without what is empty; the part of Slurm is shown apart."""
    rows = flat({**environment, "slurm": {}})
    return [(_title(name), text) for name, text in rows if text != DASH]


def _title(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    for prefix in _AS_WRITTEN:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    words = name.replace("_", " ").replace(".", " ")
    return words[:1].upper() + words[1:]
