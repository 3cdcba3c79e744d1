"""Actions of the palette: those that only need their page, and those with words of their own, like `compare 2 4`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.urls import reverse

from parlab.lab.models import Run
from parlab.lab.selectors.analysis.plans import devices, devices_like, plain_name
from parlab.lab.selectors.palette import named_runs, run_of
from parlab.lab.services.access.rights import may_change
from parlab.planner.job.presets import PRESETS, Preset
from runners.wire.protocol import ACTIVE_STATES, FINAL_STATES

from .rows import Place, Row, marked

MOST = 3
"""Rows of one action, for example of `plan` with a word that several models share."""
ANYWHERE, EXPERIMENT, RUN = "", "experiment", "run"


class Action(NamedTuple):
    title: str
    icon: str
    url: str
    """Name of its route, with the part of the page after `#`."""
    permissions: tuple[str, ...] = ()
    words: str = ""
    """Further words that find it."""
    on: str = ANYWHERE
    """The page on which it is offered."""
    ask: str = ""
    """Question before the address is posted to; a link without one."""
    states: tuple[str, ...] = ()
    """States of a measured run in which it is possible; any run if empty."""


ACTIONS = (
    Action("Relaunch this run", "rotate-ccw", "run-relaunch", ("lab.change_run",), "restart again repeat", RUN,
           "Launch this run again? The results of its attempts so far are kept.", tuple(FINAL_STATES)),
    Action("Cancel this run", "circle-x", "run-cancel", ("lab.change_run",), "stop end", RUN,
           "Cancel this run? Its results so far are kept.", tuple(ACTIVE_STATES)),
    Action("Log of this run", "terminal", "run-log", (), "output stdout", RUN),
    Action("Ranks of this run", "layout-grid", "run-ranks", (), "stragglers slow", RUN),
    Action("Where the time of this run goes", "clock", "run-time", (), "waterfall terms", RUN),
    Action("Traces of this run", "chart-no-axes-gantt", "run-traces", (), "profile timeline", RUN),
    Action("System of this run", "memory-stick", "run-system", (), "gpu memory network telemetry", RUN),
    Action("Details of this run", "table", "run-details", (), "configuration environment attempts command", RUN),
    Action("Add runs to this experiment", "plus", "sweep-edit", ("lab.add_config",), "sweep launch", EXPERIMENT),
    Action("Dashboard of this experiment", "layout-grid", "experiment-dashboard", (), "panels", EXPERIMENT),
    Action("Findings of this experiment", "triangle-alert", "findings", (), "doubts", EXPERIMENT),
    Action("Table of this experiment", "table", "experiment-table", (), "runs numbers pivot", EXPERIMENT),
    Action("Time of this experiment", "clock", "experiment-time", (), "advice phases faster", EXPERIMENT),
    Action("Configuration of this experiment", "sliders-horizontal", "experiment-configuration", (), "settings",
           EXPERIMENT),
    Action("Clone this experiment", "copy", "clone", ("lab.add_experiment",), "copy duplicate", EXPERIMENT,
           "Make a copy of this experiment without its runs?"),
    Action("New experiment", "chart-line", "sweep-new", ("lab.add_config", "lab.add_experiment"), "sweep launch"),
    Action("Import a file", "upload", "import#file", ("lab.add_run",), "upload log"),
    Action("Paste a log", "clipboard-paste", "import", ("lab.add_run",), "import"),
    Action("Connect a script", "terminal", "connect", ("lab.add_run",), "client mlflow token lightning deepspeed"),
    Action("New report", "file-text", "report-new", ("lab.add_report",), "write"),
    Action("Plan a training", "route", "plan", (), "predict size gpus"),
    Action("Simulate pipeline schedules", "chart-no-axes-gantt", "simulate", (), "gpipe 1f1b zero bubble"),
    Action("Search for the best configuration", "flask-conical", "tune", (), "tune study"),
)  # fmt: skip
"""One row each; the first that fit are shown."""


class Asked(NamedTuple):
    """A query with what it is asked about."""

    words: Sequence[str]
    place: Place
    user: User
    picked: Sequence[int] = ()
    """Ids of the runs that were added to the comparison."""


_ARGUMENTS = {ANYWHERE: 0, EXPERIMENT: 1, RUN: 2}
"""How many parts of the place an address names: slug, number."""


def plain_actions(asked: Asked, *, most: int) -> list[Row]:
    """Return the actions whose words have all words of the query; without a query those of the open page."""
    rows: list[Row] = []
    state = _state(asked) if asked.place.number else ""
    for action in ACTIONS:
        if len(rows) < most and _fits(action, asked, state):
            arguments = (asked.place.slug, asked.place.number)[: _ARGUMENTS[action.on]]
            route, _, anchor = action.url.partition("#")
            url = f"{reverse(route, args=arguments)}{'#' if anchor else ''}{anchor}"
            rows.append(Row(marked(action.title, asked.words), url, action.icon, ask=action.ask))
    return rows


def _state(asked: Asked) -> str:
    run = run_of(str(asked.place.number), user=asked.user, open_slug=asked.place.slug)
    return run.state if run and run.origin == Run.Origin.MEASURED and may_change(asked.user, run) else ""


def _fits(action: Action, asked: Asked, state: str) -> bool:
    is_here = action.on == ANYWHERE or (asked.place.number if action.on == RUN else asked.place.slug)
    text = f"{action.title} {action.words}".lower()
    is_possible = not action.states or state in action.states
    return bool(is_here and is_possible) and asked.user.has_perms(action.permissions) and all(
        word.lower() in text for word in asked.words
    )  # fmt: skip


def fitting_actions(asked: Asked, runs: Sequence[int]) -> list[Row]:
    """Return actions about what the words found: the comparison of several runs, the simulation of a schedule."""
    rows = [_comparison(runs)] if len(runs) > 1 else []
    if any(word.lower() in SCHEDULES for word in asked.words):
        rows += _simulate(asked._replace(words=["simulate", *asked.words]))
    return rows


def worded_actions(asked: Asked) -> list[Row]:
    """Return the rows of an action that the first word names: `compare`, `plan`, `simulate`, `relaunch`, `cancel`."""
    first = asked.words[0].lower() if asked.words else ""
    read = next((read for word, read in GRAMMAR.items() if first == word), None)
    rows = list(read(asked)) if read else []
    return [*rows, *(_compare_picked(asked) if asked.picked and read is not _compare else [])]


def _compare(asked: Asked) -> Iterator[Row]:
    """`compare #5 #8`, `compare slug/3 other/1`: runs of the open experiment, or of any."""
    names = [word for word in asked.words[1:] if word.lower() not in ("with", "and", "to")]
    if not names:
        yield from _compare_picked(asked) or [Row(marked("Compare: enter the numbers of runs, like compare 2 4"))]
        return
    runs = {name: run_of(name, user=asked.user, open_slug=asked.place.slug) for name in names[:20]}
    missing = [name for name, run in runs.items() if run is None]
    if missing:
        yield _no_run(missing, asked)
        return
    ids = [run.pk for run in runs.values() if run]
    yield _comparison([*dict.fromkeys([*asked.picked, *ids])])


def _no_run(names: Sequence[str], asked: Asked) -> Row:
    where = "this experiment" if asked.place.slug else "the experiment: write its address before the number, slug/3"
    return Row(marked(f"No run {', '.join(names)} in {where}"), icon="circle-alert")


def _relaunch(asked: Asked) -> Iterator[Row]:
    """`relaunch 3`, `relaunch slug/3`; the page of a run offers it without a number."""
    return _of_one_run(asked, next(action for action in ACTIONS if action.url == "run-relaunch"))


def _cancel(asked: Asked) -> Iterator[Row]:
    """`cancel 3`, `cancel slug/3`."""
    return _of_one_run(asked, next(action for action in ACTIONS if action.url == "run-cancel"))


def _of_one_run(asked: Asked, action: Action) -> Iterator[Row]:
    verb = action.title.partition(" ")[0]
    names = [word for word in asked.words[1:] if word.lower() not in ("this", "the", "run")]
    if not asked.user.has_perms(action.permissions) or (not names and asked.place.number):
        return
    if not names:
        yield Row(marked(f"{verb}: enter the number of a run, like {verb.lower()} 3 or {verb.lower()} slug/3"))
        return
    run = run_of(names[0], user=asked.user, open_slug=asked.place.slug)
    if run is None:
        yield _no_run(names[:1], asked)
    elif run.origin != Run.Origin.MEASURED or not may_change(asked.user, run) or run.state not in action.states:
        yield Row(marked(f"{verb} is not possible for run {names[0]}, which is {run.state}"), icon="circle-alert")
    else:
        url = reverse(action.url, args=[run.experiment.slug, run.number])
        (named,) = named_runs([run.pk])
        note = f"{run.experiment.name} #{run.number}"
        yield Row(marked(f"{verb} {named.name}"), url, action.icon, note=note, ask=f"{note}: {action.ask}")


def _compare_picked(asked: Asked) -> list[Row]:
    return [_comparison(list(asked.picked))] if asked.picked else []


def _comparison(ids: Sequence[int]) -> Row:
    runs = named_runs(ids)
    title = " with ".join(run.name for run in runs[:MOST])
    more = f" and {len(runs) - MOST} more" if len(runs) > MOST else ""
    note = ", ".join(f"#{run.run.number}" for run in runs[:MOST])
    url = f"{reverse('compare')}?{urlencode({'runs': ','.join(str(pk) for pk in ids)})}"
    return Row(marked(f"Compare {title}{more}", ()), url, "columns-2", note=note)


_COUNT = re.compile(r"(\d[\d,]*)(k?)\Z", re.IGNORECASE)
_FILLER = frozenset(("on", "with", "gpus", "gpu", "x", "a", "the", "using", "for"))


def _plan(asked: Asked) -> Iterator[Row]:
    """`plan llama 405b on 1024 h100`: model, number of GPUs and device, in any order."""
    count, models, catalogue = 0, list(PRESETS), [device.name for device in devices()]
    names: list[str] = []
    for word in (word for word in asked.words[1:] if word.lower() not in _FILLER):
        number = _COUNT.match(word)
        if number and len(number[1]) < 10:
            count = int(number[1].replace(",", "")) * (1024 if number[2] else 1)
        elif fitting := [entry for entry in models if plain_name(word) in plain_name(entry.name)]:
            models = fitting
        elif of_word := devices_like(word, names or catalogue):
            names = of_word
        elif word.lower() not in _FILLER:
            yield Row(
                marked(f"Unknown model or device {word}; other sizes are entered on the page Plan"), icon="circle-alert"
            )
            return
    if len(models) == len(PRESETS):
        yield Row(marked("Plan: enter a model, GPUs and a device, like plan llama 405b 1024 h100"))
        return
    chosen = names[0] if names else ""
    for entry in models[:MOST]:
        yield _planned(entry, count, chosen)


def _planned(entry: Preset, count: int, name: str) -> Row:
    fields = {"name": entry.name, **({"gpus": count} if count else {}), **({"gpu": name} if name else {})}
    on = f" on {count:,} {name or 'GPUs'}" if count else f" on {name}" if name else ""
    return Row(marked(f"Plan {entry.name}{on}"), f"{reverse('plan-model')}?{urlencode(fields)}", "route")


SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "best")


def _simulate(asked: Asked) -> Iterator[Row]:
    """`simulate 1f1b with 8 stages and 16 micro batches`."""
    text = " ".join(asked.words[1:]).lower()
    fields: dict[str, str] = {}
    for name, unit in (("stages", "stages?"), ("micro_batches", "micro.?batch(?:es)?")):
        if number := re.search(rf"(\d{{1,5}}) {unit}", text):
            fields[name] = number[1]
    named = [schedule for schedule in SCHEDULES if schedule in text.split()]
    if named:
        fields["schedules"] = " ".join(named)
    title = " ".join(["Simulate", " and ".join(named) or "pipeline schedules"])
    with_sizes = " and ".join(
        f"{number} {name.replace('_', ' ')}" for name, number in fields.items() if name != "schedules"
    )
    yield Row(
        marked(f"{title} with {with_sizes}" if with_sizes else title),
        f"{reverse('simulate')}?{urlencode(fields)}" if fields else reverse("simulate"),
        "chart-no-axes-gantt",
    )


GRAMMAR: dict[str, Callable[[Asked], Iterator[Row]]] = {
    "compare": _compare, "plan": _plan, "simulate": _simulate, "relaunch": _relaunch, "cancel": _cancel,
}  # fmt: skip
"""First word -> its rows."""
