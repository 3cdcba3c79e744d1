"""The history of a run, as W&B's clients read it: rows by step, from the series and what else was logged."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import Count

from parlab.lab.models import WandbRun
from parlab.series import store

from .file_stream import SYSTEM
from .projects import run_named
from .protocol import JSON, Call, WandbError, json_of
from .runs import last_step

MAX_ROWS = 100_000
"""Rows of one answer; clients ask for a thousand."""
_LAST = 2**31 - 1


def page(call: Call) -> JSON:
    """Return the rows of a range of steps, each as JSON, in the order of their steps."""
    run = run_named(call)
    first, end = call.whole("minStep", 0), call.whole("maxStep", _LAST)
    rows = rows_of(run, first_step=first, last_step=min(end, _LAST) - 1)
    size = call.whole("pageSize", call.whole("samples", MAX_ROWS))
    return _answer({"history": [json.dumps(row) for row in rows[:size]]})


def full(call: Call) -> JSON:
    """Return some rows of the whole history, evenly, or of what was sampled of the machine."""
    run, samples = run_named(call), call.whole("samples", 500)
    return _answer(
        {
            "history": [json.dumps(row) for row in _thinned(rows_of(run), samples)],
            "events": [json.dumps(row) for row in _thinned(_system_rows(run), samples)],
        }
    )


def sampled(call: Call) -> JSON:
    """Return, for each request for some names, the rows that hold all of them, thinned."""
    run = run_named(call)
    specs = call.data.get("specs") or [call.data.get("spec")]
    if not isinstance(specs, list):
        raise WandbError("specs is not a list; send a list of JSON texts")
    return _answer({"sampledHistory": [_sampled(run, spec) for spec in specs]})


def _sampled(run: WandbRun, spec: Any) -> list[JSON]:
    stated = json_of(spec, "specs") if isinstance(spec, str) else spec
    if not isinstance(stated, dict):
        raise WandbError("specs is not a list of objects; send {keys, samples}")
    keys = [str(key) for key in stated.get("keys") or []]
    rows = rows_of(
        run,
        names={key for key in keys if not key.startswith("_")} or None,
        first_step=int(stated.get("minStep") or 0),
        last_step=int(stated.get("maxStep") or _LAST),
    )
    whole = [{key: row[key] for key in keys} for row in rows if all(key in row for key in keys)] if keys else rows
    return _thinned(whole, int(stated.get("samples") or 500))


def live(call: Call) -> JSON:
    """Return the whole history as the part that is not exported yet: parlab exports none as Parquet."""
    run = run_named(call)
    wanted = {key for key in call.texts("liveKeys") or [] if not key.startswith("_")}
    return _answer({"parquetHistory": {"parquetUrls": [], "liveData": rows_of(run, names=wanted or None)}})


def keys(call: Call) -> JSON:
    """Return the names of the history, with how often each was logged."""
    run = run_named(call)
    infos = store.metrics(run.tracked.run.current_attempt().pk)
    named = {
        info.metric: {"typeCounts": [{"type": "number", "count": info.points}], "monotonic": False}
        for info in infos
        if not info.metric.startswith(SYSTEM)
    }
    values = run.tracked.values.values_list("key").annotate(count=Count("pk")).order_by("key")
    named |= {key: {"typeCounts": [{"type": "any", "count": count}], "monotonic": False} for key, count in values}
    return _answer({"historyKeys": {"sets": [], "keys": named, "lastStep": last_step(run)}})


def _answer(run: JSON) -> JSON:
    return {"project": {"run": run}}


def rows_of(
    run: WandbRun, *, names: Collection[str] | None = None, first_step: int = 0, last_step: int = _LAST
) -> list[JSON]:
    """Return the rows of a run between two steps: one for each step, with everything that was logged at it."""
    attempt = run.tracked.run.current_attempt()
    logged = [name for name in store.metric_names([attempt.pk])[attempt.pk] if not name.startswith(SYSTEM)]
    chosen = [name for name in logged if names is None or name in names]
    series = store.read_many([attempt.pk], chosen, first_step=first_step, last_step=last_step) if chosen else {}
    start = run.tracked.run.started_at
    begin = start.timestamp() if start else 0.0
    rows: dict[tuple[int, int], JSON] = {}
    for (_, name, rank), columns in sorted(series.items()):
        stamps, steps, values = columns.times.tolist(), columns.steps.tolist(), columns.values.tolist()
        for time, step, value in zip(stamps, steps, values, strict=True):
            rows.setdefault((step, rank), _row(step, time, begin))[name] = _plain(value)
    for item in run.tracked.values.filter(step__gte=first_step, step__lte=last_step).iterator():
        if names is None or item.key in names:
            time = item.at_ms / 1000
            rows.setdefault((item.step, 0), _row(item.step, time, begin))[item.key] = item.value
    return [rows[place] for place in sorted(rows)]


def _row(step: int, time: float, begin: float) -> JSON:
    return {"_step": step, "_timestamp": time, "_runtime": max(time - begin, 0.0)}


def _plain(value: float) -> float | int | str:
    """Write whole numbers as such, and as texts what JSON lacks, as W&B does."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _system_rows(run: WandbRun) -> list[JSON]:
    attempt = run.tracked.run.current_attempt()
    names = [name for name in store.metric_names([attempt.pk])[attempt.pk] if name.startswith(SYSTEM)]
    rows: dict[float, JSON] = {}
    for name in names:
        columns = store.read(attempt.pk, name, rank=0)
        key = f"system.{name.removeprefix(SYSTEM)}"
        for time, value in zip(columns.times.tolist(), columns.values.tolist(), strict=True):
            rows.setdefault(time, {"_timestamp": time})[key] = _plain(value)
    return [rows[time] for time in sorted(rows)]


def _thinned(rows: Sequence[JSON], samples: int) -> list[JSON]:
    """Return at most so many rows, evenly, with the first and the last."""
    count = max(samples, 1)
    if len(rows) <= count:
        return list(rows)
    if count == 1:
        return [rows[-1]]
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]
