"""Texts without which a regular expression cannot match: to look for them is twenty times as fast as to search."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

# The parser of the standard library, which has no public name; without it every expression is searched.
try:
    _parse: Any = import_module("re._parser").parse
except (ImportError, AttributeError):
    _parse = None

MAX_TEXTS = 12


class Literals(NamedTuple):
    """Texts of which one is in every match; case is ignored if the expression ignores it anywhere."""

    texts: tuple[str, ...]
    ignores_case: bool


@lru_cache(maxsize=4096)
def literals_of(pattern: re.Pattern[str]) -> Literals:
    """Return the texts of which each match has one; none if there are no such texts."""
    ignores_case = bool(pattern.flags & re.IGNORECASE) or "(?i" in pattern.pattern
    if _parse is None or pattern.flags & re.VERBOSE:
        return Literals((), ignores_case)
    texts = _of_sequence(_parse(pattern.pattern, pattern.flags))
    return Literals(tuple(sorted({text.lower() if ignores_case else text for text in texts})), ignores_case)


def _of_sequence(parsed: Iterable[tuple[Any, Any]]) -> frozenset[str]:
    """Return the best texts of expressions that follow each other; empty if none of them has any."""
    best: frozenset[str] = frozenset()
    run = ""
    for operator, argument in parsed:
        if str(operator) == "LITERAL":
            run += chr(argument)
            best = max(best, frozenset({run}), key=_worth)
        else:
            run = ""
            best = max(best, _of_part(str(operator), argument), key=_worth)
    return best


def _of_part(operator: str, argument: Any) -> frozenset[str]:
    if operator in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _of_sequence(argument[2]) if argument[0] else frozenset()
    if operator == "SUBPATTERN":
        return _of_sequence(argument[3])
    if operator == "ATOMIC_GROUP":
        return _of_sequence(argument)
    if operator == "ASSERT":
        return _of_sequence(argument[1])
    if operator == "BRANCH":
        return _of_branches([_of_sequence(branch) for branch in argument[1]])
    return frozenset()


def _of_branches(branches: Sequence[frozenset[str]]) -> frozenset[str]:
    texts = frozenset[str]().union(*branches)
    return texts if all(branches) and len(texts) <= MAX_TEXTS else frozenset()


def _worth(texts: frozenset[str]) -> tuple[int, int]:
    """Rank long texts above short ones, and few above many."""
    return min(map(len, texts), default=0), -len(texts)


class _Texts:
    """Texts with the places of their expressions, by a character of each that is rare in prose and in logs.

    Of a text without this character, no text of its group is looked for.
    """

    def __init__(self, texts: Iterable[tuple[str, int]]) -> None:
        pairs = list(texts)
        uses = Counter(character for text, _ in pairs for character in set(text))
        groups: dict[str, list[tuple[str, int]]] = {}
        for text, place in pairs:
            rarest = max(text, key=lambda character: (_rarity(character), uses[character], character))
            groups.setdefault(rarest, []).append((text, place))
        self._groups = list(groups.items())

    def within(self, text: str) -> list[int]:
        """Return the places of the texts that a text has."""
        places: list[int] = []
        for character, group in self._groups:
            if character in text:
                places += [place for literal, place in group if literal in text]
        return places


# From the most frequent one.
_FREQUENT = " etaoinsrhldcumfpgwybvkTSI0125348679.:"


def _rarity(character: str) -> int:
    place = _FREQUENT.find(character)
    return place if place >= 0 else len(_FREQUENT)


class Candidates:
    """Several expressions, of which those that may match a text are found by the texts of every match."""

    def __init__(self, patterns: Iterable[re.Pattern[str]]) -> None:
        required = [literals_of(pattern) for pattern in patterns]
        self._always = [place for place, (texts, _) in enumerate(required) if not texts]
        self._exact, self._lower = (
            _Texts(
                (text, place)
                for place, literals in enumerate(required)
                if literals.ignores_case == side
                for text in literals.texts
            )
            for side in (False, True)
        )
        self._ignoring = [place for place, literals in enumerate(required) if literals.texts and literals.ignores_case]

    def of(self, text: str) -> list[int]:
        """Return the places of the expressions that may match, in order."""
        places = self._exact.within(text)
        places += self._lower.within(text.lower()) if text.isascii() else self._ignoring
        return sorted({*places, *self._always})
