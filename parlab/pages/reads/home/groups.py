"""The list of experiments in groups, and the links above it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db.models import Count

from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.lists import EXPERIMENT_SORT, ExperimentList, ExperimentRow
from runners.wire.protocol import ACTIVE_STATES

from .cards import Card, cards

_OWN = (Run.Origin.MEASURED, Run.Origin.REPORTED)
_FOREIGN = "origin:imported,published"
_ORDERS = {
    "-activity": "Last activity first",
    "name": "By name",
    "-best": "Fastest first",
    "-findings": "Most findings first",
    "-made": "Newest first",
}
_TITLES = ("Starred", "Live", "Measured", "Imported", "Not run yet")


class Group(NamedTuple):
    """Rows under a title."""

    title: str
    rows: list[tuple[ExperimentRow, Card]]


def experiment_groups(listed: ExperimentList, starred: Collection[int] = ()) -> list[Group]:
    """Return the rows of a page: starred, live, measured, imported, and not yet run; one group if sorted otherwise."""
    found = cards([row.experiment for row in listed.rows])
    rows = [(row, found[row.experiment.pk]) for row in listed.rows]
    if listed.sort != EXPERIMENT_SORT:
        return [Group("", rows)] if rows else []
    of_own = Run.objects.filter(experiment__in=list(found), origin__in=_OWN).order_by()
    own = set(of_own.values_list("experiment", flat=True))
    groups: dict[str, list[tuple[ExperimentRow, Card]]] = {title: [] for title in _TITLES}
    for row, card in rows:
        kind = "Starred" if row.experiment.pk in starred else _kind(row, row.experiment.pk in own)
        groups[kind].append((row, card))
    return [Group(title, members) for title, members in groups.items() if members]


def _kind(row: ExperimentRow, is_own: bool) -> str:
    if any(state.state in ACTIVE_STATES for state in row.states):
        return "Live"
    if not row.states:
        return "Not run yet"
    return "Measured" if is_own else "Imported"


def segments(show: str, query: str) -> list[tuple[str, str, bool]]:
    """Return the common filters as title, address and whether it is the present one."""
    rows = _OF_RUNS if show == "runs" else _of_experiments()
    return [(title, f"?{urlencode({'q': term, 'show': show})}", query == term) for title, term in rows]


_OF_RUNS = [
    ("All", ""),
    ("Live", "state:running,queued,dispatched"),
    ("Failed", "state:failed,lost,oom"),
    ("Measured", "origin:measured,reported"),
    ("Imported", _FOREIGN),
    ("Archived", "archived:yes"),
]


def _of_experiments() -> list[tuple[str, str]]:
    counts = _counts()
    return [
        (f"All {counts['all']}", ""),
        ("Live", "is:active"),
        (f"Measured {counts['own']}", "origin:measured,reported"),
        (f"Imported {counts['foreign']}", _FOREIGN),
        ("Archived", "is:archived"),
    ]


def _counts() -> dict[str, int]:
    used = Experiment.objects.in_use()
    by_origin = Run.objects.filter(experiment__in=used).order_by().values_list("origin")
    counted = dict(by_origin.annotate(n=Count("experiment", distinct=True)))
    return {
        "all": used.count(),
        "own": sum(counted.get(origin, 0) for origin in _OWN),
        "foreign": sum(count for origin, count in counted.items() if origin not in _OWN),
    }


def orders(show: str, listed: Any) -> list[tuple[str, str, bool]]:
    """Return the orders of the list of experiments, as `segments` does."""
    if show == "runs":
        return []
    text = listed.filter.text
    return [(title, f"?{urlencode({'q': text, 'sort': sort})}", sort == listed.sort) for sort, title in _ORDERS.items()]
