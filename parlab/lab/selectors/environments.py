"""What an attempt ran on, and what its numbers are from, in words instead of the names that programs use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parlab.charts.format import DASH, quantity

from .figures import figure_title
from .runs import flat

_NAMES = {
    "hostname": "Host",
    "cpu_model": "Processor",
    "cpu_cores": "Cores",
    "memory": "Memory",
    "gpus": "GPUs",
    "gpus_used": "GPUs used",
    "driver": "GPU driver",
    "links.why_not": "Links cannot be emulated",
    "links.has_netem": "Links can be emulated",
    "kernel": "Kernel",
    "firmware.microcode": "Microcode",
    "system": "System",
    "python": "Python",
    "torch": "PyTorch",
    "matmul.torch": "PyTorch of the matrix rate",
    "git_revision": "Git revision",
    "shell": "Variables of the shell",
    "slurm_job_id": "Slurm job",
    "kubernetes.namespace": "Namespace",
    "kubernetes.pod": "Pod",
    "kubernetes.node": "Node of the pod",
    "variables.PARLAB_CHECKPOINT_DIR": "Checkpoints",
}
_POD_LABEL = "kubernetes.labels."
_MATRIX_RATE = re.compile(r"matmul\.flops\.(\w+)\.(\d+)")


def environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the environment of an attempt as names in words with texts; what is empty is left out.

    So are the rates of the node, which its own page shows.
    """
    stated = {name: value for name, value in environment.items() if name != "rates"}
    return [_row(name, text) for name, text in flat(stated) if text != DASH]


def _row(name: str, text: str) -> tuple[str, str]:
    if name in _NAMES:
        return _NAMES[name], text
    if rate := _MATRIX_RATE.fullmatch(name):
        processes = f"{rate[2]} process{'' if rate[2] == '1' else 'es'}"
        return f"Matrix rate in {rate[1]}, {processes}", _flops(text)
    if name.startswith(_POD_LABEL):
        return f"Label {name.removeprefix(_POD_LABEL)}", text
    section, _, rest = name.partition(".")
    # Packages and variables of the shell have their own names.
    return (rest, text) if section in ("packages", "variables") else (figure_title(name), text)


def _flops(text: str) -> str:
    try:
        return quantity(float(text), "FLOP/s")
    except ValueError:
        return text


_RECORDS = re.compile(r"\b(\d+) records\b")
_WARM_UP = "mean_without_first excludes the first as warm-up"
_NAMED = re.compile(r"(?:^|(?<=; ))([a-z]\w*_\w+): ")


def basis_in_words(basis: str) -> str:
    """Return what a summary says its numbers are from, without names of fields.

    `step_time_s: 1 records; mean_without_first excludes ...` becomes `Step time: 1 record`.
    """
    text = _NAMED.sub(lambda match: f"{figure_title(match[1])}: ", basis)
    text = text.replace(f"1 records; {_WARM_UP}", "1 records") if re.search(r"\b1 records", text) else text
    text = text.replace(_WARM_UP, "the mean leaves out the first as warm-up")
    return _RECORDS.sub(lambda match: f"{match[1]} record{'' if match[1] == '1' else 's'}", text)
