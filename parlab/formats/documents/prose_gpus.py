"""The number of GPUs that a sentence states: `1 node with 16 Nvidia V100 GPUs`, `8x A100 80GB`, `on 64 GPUs`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from parlab.formats.grammar.records import Record, figure

_COUNTS = {"one": 1, "two": 2, "four": 4, "eight": 8, "single": 1, "a": 1}
_NUMBER = r"\d{1,6}|\d{1,3},\d{3}|one|two|four|eight|single|a"
_NAME = r"[VAHBTPL]\d{2,4}[A-Z]?|GH200|GB200|MI\d{3}X?|RTX ?\d{4}(?: ?Ti)?"
_GPU = (
    r"(?:(?:NVIDIA|AMD|Tesla|GeForce|DGX|SXM\d?|PCIe) ){0,2}(?:\d{2,3} ?GB (?:of )?)?"
    rf"(?:{_NAME})(?:[- ](?:SXM\d?|PCIe))?(?:[- ]?\(?\d{{2,3}} ?GB\)?)?s?(?: GPUs?)?(?![\w.])|GPUs?\b"
)
_TIMES = r"\s?(?:x|\u00d7|\*)?\s?"
# A node that is mentioned without a number is one of several: only their size is known.
_NODES = re.compile(
    rf"(?i)(?<![\w.,-])({_NUMBER}) (?:\w+ )?(?:nodes?|servers?|machines?|hosts?)\b[^.;|]{{0,20}}?"
    rf"\b(?:with|of|x|having|each)\s+(?:with |of )?({_NUMBER}){_TIMES}(?:{_GPU})"
)
_PLAIN = re.compile(rf"(?i)(?<![\w.,/\u00d7*-])(\d{{1,6}}|\d{{1,3}},\d{{3}}){_TIMES}(?:{_GPU})")
_SUBJECT = re.compile(
    r"(?i)\b(?:runs?|ran|train(?:ed|ing|s)?|experiments?|benchmark\w*|measured|hardware|set-?up|environment|system"
    r"|cluster|results?|on|using|uses)\b"
)
# Sentences about a limit, a range, a part, a plan or other hardware.
_OTHERS = re.compile(
    r"(?i)\b(?:from|to|up to|at least|at most|per|each|every|between|more than|less than|fewer than|paper|they|their"
    r"|(?:nodes?|servers?|machines?) with"
    r"|would|should|could|can|if|min(?:imum)?|max(?:imum)?|needs?|requires?|only|plan(?:ned)?|estimate\w*|suppose)\b"
)


class Stated(NamedTuple):
    gpus: int
    nodes: int | None = None


def stated_gpus(text: str) -> Stated | None:
    """Return the number of GPUs, and of nodes, that a sentence states of what was run; None for any other sentence."""
    match = _NODES.search(text)
    if match and (nodes := _count(match[1])) and (each := _count(match[2])):
        before = text[max(0, match.start() - 60) : match.start()]
        return None if _OTHERS.search(before) else Stated(nodes * each, nodes)
    matches = list(_PLAIN.finditer(text))
    if len(matches) != 1 or not _SUBJECT.search(text[: matches[0].start()]) or _OTHERS.search(text):
        return None
    count = _count(matches[0][1])
    return Stated(count) if count else None


def gpu_figures(line: int, text: str) -> Iterator[Record]:
    """Yield the number of GPUs that a line states, with its text."""
    stated = stated_gpus(text)
    if stated is None:
        return
    yield figure(line, "num_gpus", float(stated.gpus), text.strip(), "GPUs")
    if stated.nodes is not None:
        yield figure(line, "num_nodes", float(stated.nodes), text.strip(), "nodes")


def _count(text: str) -> int | None:
    value = _COUNTS.get(text.lower()) or int(text.replace(",", ""))
    return value if 0 < value < 1_000_000 else None
