"""The number of processes that a program states when it starts: `world size: 8`, `Starting with 4 processes`.

Each process has a GPU of its own. Such lines are read in every log, whatever its format.
"""

from __future__ import annotations

import re

MAX_PROCESSES = 1_000_000
MAX_LINE = 20_000
_UNIT = r"(?:GPU\(?s?\)?|devices?|NPUs?|TPUs?|XPUs?|HPUs?)"
# Of these texts each line that states the number has one.
_MARKS = (
    "orld", "ORLD", "roc", "devices", "PUs", "PU(s)", "PU number", "gpus", "MEMBER", "num_local", "arallel size",
    "ank-",
)  # fmt: skip
# The sizes of groups within the world, and of the engines that generate samples, are others.
_WORLD = (
    re.compile(
        r"(?i)(?<![\w.-])(?<!local )(?<!parallel )(?<!group )(?<!\bin )world[ _]size['\"]?\s{0,40}[:=]?\s{0,4}"
        r"(\d{1,7})(?![\w.])"
    ),
    re.compile(
        r"(?i)\b(?:training|running|starting|launching|launched)\b[\w ]{0,20} (?:on|with|across) "
        rf"(\d{{1,7}}) {_UNIT}(?![\w-])"
    ),
    re.compile(r"\bStarting with (\d{1,7}) processes\b"),
    re.compile(rf"^\W{{0,4}}Using (\d{{1,7}}) {_UNIT}(?:\.{{1,3}}|\s*$)"),
    re.compile(
        r"(?i)\b(?:number of (?:GPUs|devices)|GPU number|num[ _](?:gpus|processes|devices)(?: used)?)['\"]?\s?[:=]"
        r"\s{0,4}(\d{1,7})(?![\w.])"
    ),
    re.compile(r"\bProcess \d{1,7}, total (\d{1,7})\b"),
    re.compile(r"\bMEMBER: \d{1,7}/(\d{1,7})\b"),
    re.compile(r"\[(?i:rank)-\d{1,6}/(\d{1,7})\]"),
)
_NODES = re.compile(r"['\"]?\b(?:nnodes|num_nodes|nodes)['\"]?\s?[:=]\s?(\d{1,6})\b")
_EACH = re.compile(
    r"\b(?:n_gpus_per_node|num_gpus_per_node|gpus_per_node|nproc_per_node|num_local_procs)['\"]?"
    r"\s?[:=]\s?(\d{1,4})\b"
)
_PLACES = re.compile(r"WORLD INFO DICT: (\{[^{}]{1,20000}\})")
_LIST = re.compile(r"\[([\d, ]{1,400})\]")
_PARALLEL = re.compile(
    r"data parallel size: (\d{1,6}), pipeline parallel size: (\d{1,5}), tensor parallel size: (\d{1,5})"
)
STATED = "stated_processes"
"""Name of the argument of a launch."""


def stated_processes(text: str) -> int | None:
    """Return the number of processes that a line states; None for any other line."""
    for mark in _MARKS:
        if mark in text:
            return _stated(text[:MAX_LINE])
    return None


def _stated(text: str) -> int | None:
    if "distributed_init_method" in text:
        return None
    for pattern in _WORLD:
        if (match := pattern.search(text)) is not None:
            return _plausible_count(int(match[1]))
    if (hosts := _PLACES.search(text)) is not None:
        return _plausible_count(sum(group.count(",") + 1 for group in _LIST.findall(hosts[1])))
    if (sizes := _PARALLEL.search(text)) is not None:
        return _plausible_count(int(sizes[1]) * int(sizes[2]) * int(sizes[3]))
    nodes, each = _NODES.findall(text), _EACH.findall(text)
    return _plausible_count(int(nodes[0]) * int(each[0])) if len(nodes) == len(each) == 1 else None


def _plausible_count(count: int) -> int | None:
    return count if 0 < count <= MAX_PROCESSES else None
