"""One run beside another one: what was set differently, on what it ran, and what came of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from parlab.charts.format import DASH, field_value
from parlab.lab.models import Attempt, Config, Run
from parlab.lab.selectors.leads import LEAD_ORDER
from parlab.lab.selectors.records import run_settings
from parlab.lab.selectors.runs import flat
from parlab.lab.services.attempts import headline
from runners.config import ConfigError, digest
from runners.protocol import RunState

from .comparisons import Result, results

_ATTEMPT = re.compile(r"attempt-(\d{1,5})")
_VERSION = re.compile(r"v(\d{1,9})")
_OF_THE_RUN_ITSELF = ("shell", "variables.PARLAB_RUN")
"""Facts of an environment that name the run, and so differ always."""


class Side(NamedTuple):
    """A run as one side of a difference: itself, one of its attempts, or its point under another version."""

    address: str
    """What a link calls it: `7`, `slug/7`, `attempt-1`, `v2`."""
    title: str
    run: Run
    """With the state and the numbers of the attempt that is meant."""
    attempt: Attempt | None
    ran: bool = True
    """False for a version of the configuration that nobody has run at this point."""


class Suggestion(NamedTuple):
    """A run that one would compare with first."""

    address: str
    title: str


class Row(NamedTuple):
    name: str
    mine: str
    theirs: str


class Section(NamedTuple):
    """The fields of one section of a configuration that differ."""

    title: str
    rows: list[Row]


class Difference(NamedTuple):
    settings: list[Section]
    same: list[tuple[str, str]]
    """Fields that both have with the same value."""
    environment: list[Row]
    knows_environment: bool
    """Whether both sides say on what they ran."""
    results: list[Result]


def attempt_side(run: Run, attempt: Attempt | None) -> Side:
    """Take a run as one of its attempts left it; without one as it stands."""
    if attempt is None:
        return Side(str(run.number), f"Run {run.number}", run, None)
    if attempt.number == run.attempt_number:
        return Side(str(run.number), f"Run {run.number}", run, attempt)
    seen = copy.copy(run)
    seen.state, seen.reason, seen.summary = attempt.state, attempt.reason, attempt.summary
    for name, value in headline(attempt.summary).items():
        setattr(seen, name, value)
    return Side(f"attempt-{attempt.number}", f"Attempt {attempt.number} of run {run.number}", seen, attempt)


def other_side(run: Run, address: str) -> Side | None:
    """Find what a link compares a run with; None where there is no such run, attempt or version any more."""
    if match := _ATTEMPT.fullmatch(address):
        attempt = run.attempts.select_related("node").filter(number=int(match[1])).first()
        return attempt_side(run, attempt) if attempt else None
    if match := _VERSION.fullmatch(address):
        config = run.experiment.configs.filter(version=int(match[1])).first()
        return _version_side(run, config) if config else None
    slug, _, number = address.rpartition("/")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    runs = Run.objects.select_related("experiment", "config")
    found = runs.filter(experiment__slug=slug or run.experiment.slug, number=int(number)).first()
    if found is None:
        return None
    side = attempt_side(found, found.attempts.select_related("node").filter(number=found.attempt_number).first())
    if found.experiment_id == run.experiment_id:
        return side
    return side._replace(
        address=f"{found.experiment.slug}/{found.number}", title=f"{side.title} of {found.experiment.name}"
    )


def _version_side(run: Run, config: Config) -> Side | None:
    """Take the same point of the sweep as another version would run it."""
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
    same = next((one for one in points if one.config and digest(one.values) == point_digest), None)
    return same.config.resolved() if same and same.config else None


def suggestions(run: Run, attempt: Attempt | None) -> list[Suggestion]:
    """Name what one would compare a run with first: the best of its sweep, its last attempt, the version before."""
    finished = Run.objects.filter(config=run.config_id, state=RunState.FINISHED).order_by(*LEAD_ORDER)
    best = list(finished.values_list("number", flat=True)[:2])
    found = []
    if best[:1] == [run.number]:
        found += [Suggestion(str(number), f"Next best of the sweep: run {number}") for number in best[1:]]
    else:
        found += [Suggestion(str(number), f"Best of the sweep: run {number}") for number in best[:1]]
    if attempt is not None and attempt.number > 1:
        found.append(Suggestion(f"attempt-{attempt.number - 1}", f"Attempt before: {attempt.number - 1}"))
    return [*found, *_version_before(run)]


def _version_before(run: Run) -> list[Suggestion]:
    config = run.experiment.configs.filter(version__lt=run.config.version).order_by("-version").first()
    if config is None:
        return []
    told = f"Version before: {config.version}"
    same = config.runs.filter(point_digest=run.point_digest).first()
    if same is not None:
        return [Suggestion(str(same.number), f"{told}, run {same.number}")]
    if _resolved(config, run.point_digest) is not None:
        return [Suggestion(f"v{config.version}", f"{told}, not run")]
    best = config.runs.filter(state=RunState.FINISHED).order_by(*LEAD_ORDER).first()
    return [Suggestion(str(best.number), f"{told}, its best: run {best.number}")] if best else []


def run_difference(mine: Side, theirs: Side) -> Difference:
    """Lay two sides beside each other; the numbers of the second are told against the first."""
    settings = [_texts(run_settings(side.run)) for side in (mine, theirs)]
    rows, same = _rows(*settings)
    environments = [dict(flat(side.attempt.environment)) if side.attempt else {} for side in (mine, theirs)]
    for environment in environments:
        for name in _OF_THE_RUN_ITSELF:
            environment.pop(name, None)
    return Difference(
        [Section(title, list(group)) for title, group in groupby(_by_section(rows), key=_section)],
        same,
        _rows(*environments)[0] if all(environments) else [],
        all(environments),
        results([mine.run, theirs.run]) if mine.ran and theirs.ran else [],
    )


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: field_value(value) for name, value in settings.items()}


def _rows(mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[list[Row], list[tuple[str, str]]]:
    names = dict.fromkeys([*mine, *theirs])
    rows = [Row(name, mine.get(name, DASH), theirs.get(name, DASH)) for name in names]
    return [row for row in rows if row.mine != row.theirs], [
        (row.name, row.mine) for row in rows if row.mine == row.theirs
    ]


def _section(row: Row) -> str:
    return row.name.partition(".")[0] if "." in row.name else ""


def _by_section(rows: Sequence[Row]) -> list[Row]:
    order = list(dict.fromkeys(_section(row) for row in rows))
    return sorted(rows, key=lambda row: order.index(_section(row)))
