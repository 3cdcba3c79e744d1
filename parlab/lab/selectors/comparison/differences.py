"""The differences between two runs: settings, environments and results."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from django.db.models import F

from parlab.charts.format import DASH, field_value
from parlab.lab.models import Attempt, Config, Run
from parlab.lab.selectors.comparison.results import Result, results
from parlab.lab.selectors.environments import environment_rows
from parlab.lab.selectors.records import run_settings
from parlab.lab.services.attempts import headline
from parlab.whole_numbers import whole_number
from runners.config import ConfigError, repeated
from runners.wire.protocol import RunState

FASTEST_FIRST = (
    F("samples_per_s").desc(nulls_last=True),
    F("tokens_per_s").desc(nulls_last=True),
    F("step_time_s").asc(nulls_last=True),
    F("number").asc(),
)
"""Fastest first; runs of one experiment mostly have the same kinds of numbers."""
_ATTEMPT = re.compile(r"attempt-(\d{1,5})")
_VERSION = re.compile(r"v(\d{1,9})")
_RUN_SPECIFIC = ("Variables of the shell", "PARLAB_RUN")
"""Entries of an environment that contain the name of the run and therefore always differ."""


class Side(NamedTuple):
    """One side of a difference: a run, one of its attempts, or its point in another version."""

    address: str
    """Value of `?with=`: `7`, `slug/7`, `attempt-1`, `v2`."""
    title: str
    run: Run
    """The run, with state and results of this attempt."""
    attempt: Attempt | None
    ran: bool = True
    """False for a version of the configuration without a run at this point."""


class Suggestion(NamedTuple):
    """A suggested run to compare with."""

    address: str
    title: str


class Row(NamedTuple):
    name: str
    left: str
    right: str


class Section(NamedTuple):
    """The differing fields of one section of a configuration."""

    title: str
    rows: list[Row]


class Difference(NamedTuple):
    settings: list[Section]
    same: list[tuple[str, str]]
    """Fields with the same value on both sides."""
    environment: list[Row]
    has_environments: bool
    """Whether both sides have a recorded environment."""
    results: list[Result]


def attempt_side(run: Run, attempt: Attempt | None) -> Side:
    """Return a run with the results of one of its attempts; without an attempt, with its current results."""
    if attempt is None:
        return Side(str(run.number), f"Run {run.number}", run, None)
    if attempt.number == run.attempt_number:
        return Side(str(run.number), f"Run {run.number}", run, attempt)
    past = copy.copy(run)
    past.state, past.reason, past.summary = attempt.state, attempt.reason, attempt.summary
    for name, value in headline(attempt.summary).items():
        setattr(past, name, value)
    return Side(f"attempt-{attempt.number}", f"Attempt {attempt.number} of run {run.number}", past, attempt)


def other_side(run: Run, address: str) -> Side | None:
    """Return the side with an address; None if that run, attempt or version does not exist."""
    if match := _ATTEMPT.fullmatch(address):
        attempt = run.attempts.with_members().filter(number=int(match[1])).first()
        return attempt_side(run, attempt) if attempt else None
    if match := _VERSION.fullmatch(address):
        config = run.experiment.configs.filter(version=int(match[1])).first()
        return _version_side(run, config) if config else None
    slug, _, number = address.rpartition("/")
    if whole_number(number, 9) is None:
        return None
    runs = Run.objects.select_related("experiment", "config")
    other = runs.filter(experiment__slug=slug or run.experiment.slug, number=int(number)).first()
    if other is None:
        return None
    side = attempt_side(other, other.attempts.with_members().filter(number=other.attempt_number).first())
    if other.experiment_id == run.experiment_id:
        return side
    return side._replace(
        address=f"{other.experiment.slug}/{other.number}", title=f"{side.title} of {other.experiment.name}"
    )


def _version_side(run: Run, config: Config) -> Side | None:
    """Return the same point of the sweep, as resolved by another version."""
    resolved = _resolved(config, run.point_digest)
    if resolved is None:
        return None
    planned = copy.copy(run)
    planned.config, planned.resolved, planned.summary = config, resolved, {}
    return Side(f"v{config.version}", f"Version {config.version}, not run", planned, None, ran=False)


def _resolved(config: Config, point_digest: str) -> dict[str, Any] | None:
    try:
        points = config.points()
    except ConfigError:
        return None
    configs = (point.config for point in repeated(points) if point.config and point.digest == point_digest)
    config_at_point = next(configs, None)
    return config_at_point.resolved() if config_at_point else None


def suggestions(run: Run, attempt: Attempt | None) -> list[Suggestion]:
    """Suggest runs to compare with: the best of the sweep, the previous attempt, the previous version."""
    finished = Run.objects.filter(config=run.config_id, state=RunState.FINISHED).order_by(*FASTEST_FIRST)
    best = list(finished.values_list("number", flat=True)[:2])
    runs = []
    if best[:1] == [run.number]:
        runs += [Suggestion(str(number), f"Next best of the sweep: run {number}") for number in best[1:]]
    else:
        runs += [Suggestion(str(number), f"Best of the sweep: run {number}") for number in best[:1]]
    if attempt is not None and attempt.number > 1:
        runs.append(Suggestion(f"attempt-{attempt.number - 1}", f"Previous attempt: {attempt.number - 1}"))
    return [*runs, *_version_before(run)]


def _version_before(run: Run) -> list[Suggestion]:
    config = run.experiment.configs.filter(version__lt=run.config.version).order_by("-version").first()
    if config is None:
        return []
    title = f"Previous version: {config.version}"
    same = config.runs.filter(point_digest=run.point_digest).first()
    if same is not None:
        return [Suggestion(str(same.number), f"{title}, run {same.number}")]
    if _resolved(config, run.point_digest) is not None:
        return [Suggestion(f"v{config.version}", f"{title}, not run")]
    best = config.runs.filter(state=RunState.FINISHED).order_by(*FASTEST_FIRST).first()
    return [Suggestion(str(best.number), f"{title}, its best: run {best.number}")] if best else []


def run_difference(left: Side, right: Side) -> Difference:
    """Compare two sides; results of the second are relative to the first."""
    settings = [_texts(run_settings(side.run)) for side in (left, right)]
    rows, same = _difference_rows(*settings)
    environments = [_environment(side.attempt) for side in (left, right)]
    return Difference(
        [Section(title, list(group)) for title, group in groupby(_by_section(rows), key=_section)],
        same,
        _difference_rows(*environments)[0] if all(environments) else [],
        all(environments),
        results([left.run, right.run]) if left.ran and right.ran else [],
    )


def _environment(attempt: Attempt | None) -> dict[str, str]:
    """Return what an attempt ran on, without what differs between any two runs."""
    if attempt is None:
        return {}
    return {name: text for name, text in environment_rows(attempt.environment) if name not in _RUN_SPECIFIC}


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: field_value(value) for name, value in settings.items()}


def _difference_rows(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[list[Row], list[tuple[str, str]]]:
    names = dict.fromkeys([*left, *right])
    rows = [Row(name, left.get(name, DASH), right.get(name, DASH)) for name in names]
    return [row for row in rows if row.left != row.right], [
        (row.name, row.left) for row in rows if row.left == row.right
    ]


def _section(row: Row) -> str:
    return row.name.partition(".")[0] if "." in row.name else ""


def _by_section(rows: Sequence[Row]) -> list[Row]:
    order = list(dict.fromkeys(_section(row) for row in rows))
    return sorted(rows, key=lambda row: order.index(_section(row)))
