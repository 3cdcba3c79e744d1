"""An experiment as a card or a row: the answer in a few words, and its runs on one scale."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Count, Max, Sum

from parlab.charts.dots import Dot, DotRow, dot_plot, hover, strip
from parlab.charts.format import SPACE
from parlab.charts.points import Spread
from parlab.charts.svg import Svg
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.analysis.identities import Identity
from parlab.lab.selectors.experiments import StateCount, state_counts
from parlab.lab.selectors.runs import step_time
from parlab.publishing.answers.answer import Answer
from parlab.publishing.answers.experiment_answer import answer_of, case_of
from parlab.publishing.answers.standings import Standing, Standings
from runners.wire.protocol import RunState

_KEPT = 400
"""Cards that a process keeps."""
_KEPT_S, _LIVE_S = 30, 3
"""Time for which a card is kept, and that of an experiment with active runs."""
_READ_RUNS = 300
"""Most runs of an experiment that a card reads; the answer of more is that of the first ones."""


class Card(NamedTuple):
    """An experiment in a few words and a picture."""

    answer: Answer
    plot: Svg
    """A row for each value of the leading field."""
    strip: Svg
    states: list[StateCount]
    runs: int
    number: str
    """The best number, and its unit."""
    unit: str
    mark: str
    """What is wrong with the loss of a run: `loss is NaN`; empty if nothing is."""
    compares: bool
    """Whether at least two runs stand on one scale."""


def cards(experiments: Sequence[Experiment]) -> dict[int, Card]:
    """Return the card of each experiment, by its id; those that have not changed are not read again."""
    stamps = _stamps([experiment.pk for experiment in experiments])
    wanted = {experiment.pk: _key(experiment, stamps.get(experiment.pk, ())) for experiment in experiments}
    missing = [experiment for experiment in experiments if wanted[experiment.pk] not in _cache]
    by_experiment = _runs(missing)
    for experiment in missing:
        _cache[wanted[experiment.pk]] = _card(experiment, by_experiment.get(experiment.pk, []))
    found = {pk: _cache[key] for pk, key in wanted.items()}
    while len(_cache) > _KEPT:
        _cache.popitem(last=False)
    return found


def forget() -> None:
    """Forget all cards, as tests do between databases."""
    _cache.clear()


_cache: OrderedDict[Any, Card] = OrderedDict()


def _key(experiment: Experiment, stamp: tuple[Any, ...]) -> tuple[Any, ...]:
    is_live = bool(stamp) and stamp[-1] is not None
    now = int(time.time() / (_LIVE_S if is_live else _KEPT_S))
    return experiment.pk, experiment.name, experiment.question, stamp, now


def _stamps(experiment_ids: Iterable[int]) -> dict[int, tuple[Any, ...]]:
    """Return what changes when an experiment has new results; its last part is None without active runs."""
    runs = Run.objects.filter(experiment__in=list(experiment_ids), hidden_at=None).order_by().values("experiment_id")
    rows = runs.annotate(
        n=Count("pk", distinct=True),
        last=Max("pk"),
        ended=Max("ended_at"),
        tries=Sum("attempt_number"),
        tried=Count("advice_trials"),
        speed=Sum("samples_per_s"),
        time=Sum("step_time_s"),
    )
    active = dict(Run.objects.active().filter(experiment__in=list(experiment_ids)).values_list("experiment_id", "pk"))
    return {
        row["experiment_id"]: (
            row["n"],
            row["last"],
            row["ended"],
            row["tries"],
            row["tried"],
            row["speed"],
            row["time"],
            active.get(row["experiment_id"]),
        )
        for row in rows
    }


def _runs(experiments: Sequence[Experiment]) -> dict[int, list[Run]]:
    rows = Run.objects.filter(experiment__in=[e.pk for e in experiments], hidden_at=None).select_related("config")
    by_experiment: dict[int, list[Run]] = {}
    for run in rows.defer("launch", "config__data", "config__sweep").order_by("number") if experiments else ():
        members = by_experiment.setdefault(run.experiment_id, [])
        if len(members) < _READ_RUNS:
            members.append(run)
    return by_experiment


def _card(experiment: Experiment, runs: Sequence[Run]) -> Card:
    case = case_of(experiment, runs)
    known, ranked, answer = case.identities, case.standings, answer_of(case)
    dots = {row.run.pk: dot_of(row, ranked) for row in ranked.rows}
    label = f"{experiment.name}: {answer.verdict}"
    ordered = [dots[run.pk] for run in runs if run.pk in dots]
    return Card(
        answer,
        dot_plot(_rows(runs, known, dots, answer), ranked.unit, label),
        strip(ordered[:24], label),
        state_counts([run.shown_state for run in runs]),
        len(runs),
        *_best_text(ranked),
        next((Run.LossMark(run.loss_mark).label for run in runs if run.loss_mark), ""),
        len(dots) > 1,
    )


def _best_text(ranked: Standings) -> tuple[str, str]:
    if not ranked.rows:
        return "", ""
    number, _, unit = ranked.shown(ranked.rows[0]).partition(SPACE)
    return number, unit


def dot_of(row: Standing, ranked: Standings) -> Dot:
    """Return a point of an experiment on the scale of its speed."""
    times = step_time(row.run.summary)
    spread = times.of(row.value, is_time=ranked.unit == "s") if times is not None else Spread(row.value)
    name = hover(row.identity.name, row.value, ranked.unit, spread.p10, spread.p90)
    return Dot(row.value, spread.p10, spread.p90, row.identity.look, name)


def _rows(runs: Sequence[Run], known: Mapping[int, Identity], dots: Mapping[int, Dot], answer: Answer) -> list[DotRow]:
    """Group the points by the field that sets their colour; a single field has a row for each of its values."""
    rows: dict[str, list[Dot]] = {}
    best: set[str] = set()
    is_single = all(len(identity.values) < 2 for identity in known.values())
    for run in runs:
        identity = known[run.pk]
        name = identity.name if is_single or not identity.group else identity.group
        if run.pk in dots:
            rows.setdefault(name, []).append(dots[run.pk])
        elif run.state == RunState.OOM:
            rows.setdefault(name, []).append(Dot(0, is_out=True))
        if answer.best is not None and run.pk == answer.best.pk:
            best.add(name)
    return [DotRow(name, members, name in best) for name, members in rows.items()]
