"""Answers that compare the speed of runs: which is fastest, is A faster than B, how much does it cost."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from parlab.charts.format import SPACE, field_value, quantity
from parlab.lab.models import Run
from parlab.lab.selectors.runs import model_text, step_time

from .answer import Action, Answer, Case, Short
from .standings import Standing, noise_text
from .words import MEASURABLE, TWICE, capital, gap, named, phrase, share, times

_COMPARES = re.compile(r"\b(faster|slower|better|worse|beat|beats|or|than|versus|vs)\b")
_ASKS = re.compile(r"\s*(is|are|does|do|can|will)\b")
_NEGATIVE = re.compile(r"\b(slower|worse)\b")
_COSTS = re.compile(r"\bhow much (slower|faster|longer|does .* cost)\b")
_REPEATS = 3


def versus(case: Case) -> Answer | None:
    """Answer `Is A faster than B`: both are values of one field."""
    pair = _named_values(case) if _COMPARES.search(case.question) else None
    if pair is None:
        return None
    mine, other = (_best_with(case, pair.field, value) for value in (pair.first, pair.second))
    if mine is None or other is None:
        return None
    is_first = mine.speed >= other.speed
    best, worse = (mine, other) if is_first else (other, mine)
    loser = named(pair.field, pair.second if is_first else pair.first)
    name = f"the best {loser}" if len(case.standings.rows) > 2 else loser
    answer = _lead(case, best, worse, name, is_pair=True)
    if answer.is_lead_unsure:
        return answer._replace(verdict=f"Not proven: {answer.verdict}")
    if not _ASKS.match(case.experiment.question.lower()):
        return answer
    word = "Yes" if is_first != bool(_NEGATIVE.search(case.question)) else "No"
    return answer._replace(verdict=f"{word}: {answer.verdict}")


def _best_with(case: Case, field: str, value: Any) -> Standing | None:
    return next((row for row in case.standings.rows if row.values.get(field) == value), None)


def costs(case: Case) -> Answer | None:
    """Answer `How much slower is it` by the two ends."""
    rows = case.standings.rows
    if len(rows) < 2 or not _COSTS.search(case.question):
        return None
    return _lead(case, rows[0], rows[-1], _name(rows[-1]))


def fastest(case: Case) -> Answer | None:
    """Answer by the fastest run and its lead: the answer to a question that no other kind understands."""
    rows = case.standings.rows
    if not rows:
        return None
    if len(rows) == 1:
        key = case.standings.shown(rows[0])
        short = Short("", _trained(case, rows[0].run) or key)
        return Answer(f"Training reaches {key}.", short, key=key, tone="plain").about(rows[0])
    loser = "the slowest" if len(rows) > 2 else _name(rows[1])
    return _lead(case, rows[0], rows[-1], loser)


def _trained(case: Case, run: Run) -> str:
    """Say what the only run trains, on how many devices; lists show its speed beside it."""
    gpus = int(run.gpus or 0)
    devices = f"{gpus:,} {case.standings.device if gpus == 1 else case.standings.devices}" if gpus else ""
    spread = step_time(run.summary)
    seconds = f"{quantity(spread.median, 's')} a step" if spread and case.standings.unit != "s" else ""
    parts = [part for part in (model_text(run.resolved), devices, seconds) if part]
    return ", ".join(parts[:2])


def _lead(case: Case, best: Standing, worse: Standing, loser: str, *, is_pair: bool = False) -> Answer:
    """Say how far the best is ahead of what it is compared with, and of the runner-up."""
    ahead, limit = case.standings.ahead(best, worse), case.standings.noise_of(best, worse)
    is_unsure = case.standings.is_unsure(best, worse)
    second = _runner_up(case, best, worse, is_pair=is_pair)
    noise = noise_text(limit or 0.0) if is_unsure else second.noise
    key = case.standings.shown(best)
    if is_unsure and ahead - 1 < MEASURABLE:
        far, near = f"no measurable difference from {loser}", "no measurable difference"
    elif ahead >= TWICE:
        far, near = f"{times(ahead)} {loser}", f"{times(ahead)} {loser.removeprefix('the best ')}"
    else:
        lead_by = share(ahead - 1, 1 if is_unsure else 2)
        far, near = f"{lead_by} faster than {loser}", f"{lead_by} ahead"
    settings = dict(list(best.values.items())[:2]) if len(best.values) < 3 else dict(best.values)
    lead = phrase(settings).replace(" with ", ", ") or _name(best)
    return Answer(
        verdict=f"{capital(_name(best))}, {key}{_repeats(best)}, {far}.",
        short=Short(capital(lead), f": {near}"),
        rest=tuple(filter(None, [second.text, _memory(best, worse, loser), "" if noise else _sureness(case, limit)])),
        noise=noise,
        is_lead_unsure=is_unsure,
        action=Action(f"Repeat {_REPEATS}{SPACE}× to separate them", "repeat", best.run) if noise else None,
        key=noise if is_unsure else key,
        tone="plain" if is_unsure else "good",
    ).about(best)


def _repeats(row: Standing) -> str:
    return f" (mean of {len(row.runs)} repeats)" if len(row.runs) > 1 else ""


def _name(row: Standing) -> str:
    return phrase(row.values) or row.identity.name


class _RunnerUp(NamedTuple):
    text: str = ""
    noise: str = ""


def _runner_up(case: Case, best: Standing, worse: Standing, *, is_pair: bool) -> _RunnerUp:
    """Return a sentence about the fastest other kind of point that is not part of the verdict, and its noise.

    With `is_pair` the verdict compares two kinds, and a third one is told.
    """
    leading = next(iter(best.values), "")
    others = [row for row in case.standings.rows if row not in (best, worse)]
    told = (best.values.get(leading), *((worse.values.get(leading),) if is_pair else ()))
    other_kind = [row for row in others if row.values.get(leading) not in told]
    same_kind = [row for row in others if row.values.get(leading) == best.values.get(leading)]
    row = next(iter(other_kind or same_kind), None)
    if row is None:
        return _RunnerUp()
    differing = {field: value for field, value in row.values.items() if value != best.values.get(field)}
    behind = 1 - row.speed / best.speed
    is_unsure = case.standings.is_unsure(best, row)
    is_behind = behind >= 0 or (is_unsure and behind > -MEASURABLE)
    faster_by = share(row.speed / best.speed - 1, 1 if is_unsure else 2) if not is_behind else ""
    distance = gap(behind, is_unsure=is_unsure) if is_behind else f"{faster_by} faster"
    text = f"{capital(phrase(differing) or row.identity.name)} is {distance}"
    if is_unsure:
        return _RunnerUp(text, noise_text(case.standings.noise_of(best, row) or 0.0))
    return _RunnerUp(f"{text}.")


def _sureness(case: Case, limit: float | None) -> str:
    """Say what a lead that is proven was measured against."""
    if case.standings.repeats:
        return f"Repeats vary by ±{share(case.standings.repeats.deviation)}."
    return "One run each, noise unknown." if not limit else f"One run each, whose steps vary by ±{share(limit)}."


def _memory(best: Standing, worse: Standing, loser: str) -> str:
    if not best.memory or not worse.memory:
        return ""
    change = best.memory - worse.memory
    if abs(change) < 0.01 * worse.memory:
        return "Memory: the same."
    return f"Memory: {quantity(abs(change), 'B')} {'more' if change > 0 else 'less'} than {loser}."


class _Pair(NamedTuple):
    field: str
    first: Any
    second: Any


def _named_values(case: Case) -> _Pair | None:
    """Return the field of which the question names two values, and these in the order of the question."""
    for field in dict.fromkeys(field for row in case.standings.rows for field in row.values):
        values = {repr(row.values[field]): row.values[field] for row in case.standings.rows if field in row.values}
        places = [(place, value) for value in values.values() if (place := _place(case, field, value)) >= 0]
        if len(places) >= 2:
            (_, first), (_, second) = sorted(places, key=lambda item: item[0])[:2]
            return _Pair(field, first, second)
    return None


def _place(case: Case, field: str, value: Any) -> int:
    """Return where the question names a value; -1 if it does not. A bare number names nothing."""
    texts = {named(field, value), field_value(value) if isinstance(value, str) else ""}
    for text in (text.lower() for text in texts if len(text) > 1):
        if found := re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", case.question):
            return found.start()
    return -1
