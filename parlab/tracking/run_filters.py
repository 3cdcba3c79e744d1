"""MLflow's filter language over all runs: `loss < 2 and params.lr = 0.1 and state = 'finished'`.

Beside MLflow's keys, a name alone is a field of runs or else a metric, and a parameter compares with a number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from parlab.lab.models import Run, RunParameter, TrackedRun

from .mlflow.protocol import MlflowError
from .mlflow.search import Term, filtered_by, parse_filter

_TEXTS = {"state": "state", "label": "label", "origin": "origin", "experiment": "experiment__slug"}
_NUMBERS = {
    **{name: name for name in ("number", "gpus", "step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes")},
    "mfu": "mfu",
    "global_batch_size": "global_batch_size",
}
_TRACKED = {
    *("run_id", "run_name", "status", "user_id", "start_time", "end_time", "created", "Created", "Run Name", "Run ID"),
    *("run name", "Start Time", "experiment_id"),
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_LOOKUPS = {"=": "", "<": "__lt", "<=": "__lte", ">": "__gt", ">=": "__gte"}
_LOSS = ("loss", "train/loss")
MAX_VALUES = 10_000


def runs_filtered(runs: QuerySet[Run], text: str) -> QuerySet[Run]:
    """Keep the runs that match every term of a filter; raises ValueError with a remedy."""
    try:
        for term in parse_filter(text):
            runs = runs.filter(_condition(term, runs))
    except MlflowError as error:
        raise ValueError(f"{error}; write terms like loss < 2 and params.lr = 0.1") from error
    return runs


def _condition(term: Term, runs: QuerySet[Run]) -> Any:
    if term.kind == "attribute" and term.key in _TEXTS:
        return _on_text(term, _TEXTS[term.key])
    if term.kind == "attribute" and term.key in _NUMBERS:
        return _on_number(term, _NUMBERS[term.key])
    if term.kind == "attribute" and term.key not in _TRACKED:
        term = term._replace(kind="metric")
    if term.kind == "param" and isinstance(term.value, float):
        return _on_parameter(term, runs)
    tracked = Exists(filtered_by(TrackedRun.objects.filter(run=OuterRef("pk")), [term]))
    if term.kind == "metric" and term.key in _LOSS and isinstance(term.value, float):
        return tracked | (Q(tracked=None) & _on_number(term, "summary__loss__last"))
    return tracked


def _on_text(term: Term, field: str) -> Q:
    if term.operator not in ("=", "!=", "IN", "NOT IN"):
        raise ValueError(f"{term.key} cannot be compared by {term.operator}; use =, !=, IN or NOT IN")
    values = term.value if isinstance(term.value, tuple) else (str(term.value),)
    condition = Q(**{f"{field}__in": values})
    return ~condition if term.operator in ("!=", "NOT IN") else condition


def _on_number(term: Term, field: str) -> Q:
    if term.operator not in _COMPARISONS or not isinstance(term.value, float):
        raise ValueError(
            f"{term.key} {term.operator} {term.value!r} is not a comparison with a number; use {term.key} < 2"
        )
    if term.operator == "!=":
        return ~Q(**{field: term.value}) & Q(**{f"{field}__isnull": False})
    return Q(**{f"{field}{_LOOKUPS[term.operator]}": term.value})


def _on_parameter(term: Term, runs: QuerySet[Run]) -> Any:
    """Select by a parameter as a number: its texts, which are few, are compared here."""
    if term.operator not in _COMPARISONS:
        raise ValueError(f"parameter {term.key} cannot be compared with a number by {term.operator}; use = or <")
    rows = RunParameter.objects.filter(tracked__run__in=runs, key=term.key)
    texts = rows.order_by().values_list("value", flat=True).distinct()[:MAX_VALUES]
    compare = _COMPARISONS[term.operator]
    matches = [text for text in texts if (number := _as_float(text)) is not None and compare(number, term.value)]
    return Exists(RunParameter.objects.filter(tracked__run=OuterRef("pk"), key=term.key, value__in=matches))


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
