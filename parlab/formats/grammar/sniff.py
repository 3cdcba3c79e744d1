"""Detection of a text's format from its content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from parlab.formats.grammar.literals import Candidates
from parlab.formats.grammar.prefixes import peel

UNKNOWN = "unknown"
HEAD_CHARACTERS = 512 * 1024
ENOUGH = 20
THRESHOLD = 3
ENGINE = "deepspeed"
"""The format of an engine, whose lines stand between those of a trainer: then the file is of the trainer's format."""
_NO_TRAINERS = frozenset(
    {ENGINE, "all-reduce-bench", "bars", "configuration", "csv", "dcgm-exporter", "deepspeed-autotuning", "jsonl",
     "link-tests", "markdown", "nccl-tests", "nvidia-smi", "rst", "serving", "tensorboard-json", "wandb-runs"}
)  # fmt: skip
OWN_LINES = 12
# Their lines have no prefix: `2026-01-01 10:00:00 - INFO` is no list item.
DOCUMENTS = frozenset({"markdown", "rst"})
_DIGITS = re.compile(r"\d+")

Signs = Sequence[tuple[re.Pattern[str], int]]


class Signed(Protocol):
    """A reader with patterns of its lines, each with a weight."""

    @property
    def SIGNS(self) -> Signs: ...


class _Index:
    """The signs of several formats, found by the texts without which they cannot match."""

    def __init__(self, formats: Mapping[str, Signed]) -> None:
        self.readers = list(formats.values())
        signs = [(name, pattern, weight) for name, reader in formats.items() for pattern, weight in reader.SIGNS]
        self.signs = [(name, pattern.search, weight) for name, pattern, weight in signs]
        self.candidates = Candidates([pattern for _, pattern, _ in signs]).of


# By identity: the formats are a table of a module, which does not change.
_INDEXES: dict[int, tuple[Mapping[str, Signed], _Index]] = {}
MAX_INDEXES = 16


def _index(formats: Mapping[str, Signed]) -> _Index:
    # The formats are kept, so that no other table gets their identity.
    kept = _INDEXES.get(id(formats))
    if kept is None:
        if len(_INDEXES) >= MAX_INDEXES:
            _INDEXES.clear()
        kept = _INDEXES[id(formats)] = (formats, _Index(formats))
    return kept[1]


def line_scores(text: str, formats: Mapping[str, Signed]) -> Counter[str]:
    """Return the sum of the weights of the signs of one line, without its prefix, for each format."""
    index = _index(formats)
    totals: Counter[str] = Counter()
    for name, search, weight in map(index.signs.__getitem__, index.candidates(text)):
        if search(text):
            totals[name] += weight
    return totals


def scores(head: Iterable[str], formats: Mapping[str, Signed]) -> Counter[str]:
    """Return the sum of the weights of matching signs for each format; a sign counts at most ENOUGH times."""
    index = _index(formats)
    used: Counter[int] = Counter()
    totals: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for _, rank, time, line in peel(head):
        text = line[:2000]
        is_tagged = rank is not None or time is not None
        # Lines that differ in their numbers only have the same signs, which count no further.
        shape = f"{is_tagged}{_DIGITS.sub('0', text)}"
        seen[shape] += 1
        if seen[shape] > ENOUGH:
            continue
        for place in index.candidates(text):
            name, search, weight = index.signs[place]
            if used[place] < ENOUGH and not (is_tagged and name in DOCUMENTS) and search(text):
                used[place] += 1
                totals[name] += weight
    return totals


def sniff(head: Sequence[str], formats: Mapping[str, Signed]) -> str:
    """Return the format with the highest score, or `unknown` below THRESHOLD; ties go to the first registered."""
    totals = scores(head, formats)
    if totals[ENGINE] == max(totals.values(), default=0):
        trainers = {name: score for name, score in totals.items() if name not in _NO_TRAINERS and score >= OWN_LINES}
        totals = Counter(trainers) or totals
    highest = max(totals.values(), default=0)
    return next(name for name in formats if totals[name] == highest) if highest >= THRESHOLD else UNKNOWN
