"""Columns of the lists, and which of them a person hides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from django.contrib.auth.models import User

from parlab.lab.models import Preference
from parlab.lab.services import storable


class Column(NamedTuple):
    """A column of a list; `?sort=` uses the same name."""

    name: str
    title: str
    is_number: bool = False
    is_sortable: bool = True
    is_shown: bool = True
    """The default; each person can change it."""


RUN_COLUMNS = (
    Column("experiment", "Experiment"),
    Column("label", "Point"),
    Column("state", "State"),
    Column("step_time", "Step time", is_number=True),
    Column("samples_per_s", "Throughput", is_number=True),
    Column("tokens_per_s", "Token throughput", is_number=True, is_shown=False),
    Column("ms_per_sample", "ms per sample", is_number=True, is_shown=False),
    Column("memory", "Peak memory", is_number=True),
    Column("mfu", "MFU (%)", is_number=True, is_shown=False),
    Column("engine", "Engine"),
    Column("schedule", "Schedule", is_shown=False),
    Column("precision", "Precision", is_shown=False),
    Column("gpus", "GPUs", is_number=True),
    Column("tp", "TP", is_number=True, is_shown=False),
    Column("pp", "PP", is_number=True, is_shown=False),
    Column("dp", "DP", is_number=True, is_shown=False),
    Column("micro_batch", "Micro batch", is_number=True),
    Column("global_batch", "Global batch", is_number=True, is_shown=False),
    Column("findings", "Findings", is_number=True, is_sortable=False),
    Column("tags", "Tags", is_sortable=False),
    Column("note", "Note", is_sortable=False, is_shown=False),
    Column("ended", "Ended"),
)
OF_EXPERIMENT = "experiment"
"""The table of the runs of an experiment, whose columns depend on its runs."""
MAX_KEY, MAX_DECIDED = 80, 200
LISTS: Mapping[str, tuple[Column, ...]] = {"experiments": (), "runs": RUN_COLUMNS}


def _key(name: str) -> str:
    return f"columns.{name}"


def shown_columns(user: User, name: str) -> frozenset[str]:
    """Return the names of the columns of a list that a person sees."""
    if not LISTS[name]:
        return frozenset()
    # Only decisions are stored, so that columns of later versions have their default.
    decided = decided_columns(user, name)
    return frozenset(column.name for column in LISTS[name] if decided.get(column.name, column.is_shown))


def decided_columns(user: User, name: str) -> dict[str, bool]:
    """Return which columns of a table a person has shown or hidden, by key."""
    chosen = Preference.objects.filter(user=user, name=_key(name)).values_list("value", flat=True).first()
    return {str(key): bool(value) for key, value in chosen.items()} if isinstance(chosen, dict) else {}


def has_own_columns(user: User, name: str) -> bool:
    """Return whether a person sees other columns of a list than the usual ones."""
    usual = frozenset(column.name for column in LISTS[name] if column.is_shown)
    return bool(LISTS[name]) and shown_columns(user, name) != usual


def columns_decide(*, user: User, name: str, present: Iterable[str], shown: Iterable[str]) -> None:
    """Store which of the present columns of a table a person sees; what they decided of others stays."""
    names = set(shown)
    new = {storable.text(key)[:MAX_KEY]: key in names for key in list(present)[:MAX_DECIDED]}
    value = dict(list((decided_columns(user, name) | new).items())[-MAX_DECIDED:])
    Preference.objects.update_or_create(user=user, name=_key(name), defaults={"value": value})


def columns_choose(*, user: User, name: str, shown: Iterable[str]) -> None:
    """Store which columns of a list a person sees."""
    names = set(shown)
    value = {column.name: column.name in names for column in LISTS[name]}
    Preference.objects.update_or_create(user=user, name=_key(name), defaults={"value": value})
