"""Filters and orders of runs, as W&B's clients write them: a filter in MongoDB's language, fields to sort by."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parlab.lab.models import WandbRun
from runners.wire.protocol import RunState

from .protocol import JSON, WandbError
from .runs import STATES

_ORDERS = {
    **dict.fromkeys(("created_at", "createdAt"), "tracked__run__queued_at"),
    "heartbeat_at": "tracked__last_report_at",
    "name": "run_id",
    **dict.fromkeys(("display_name", "displayName"), "tracked__name"),
}


_JOINS: dict[str, Callable[[list[bool]], bool]] = {
    "$and": all,
    "$or": any,
    "$nor": lambda results: not any(results),
    "$not": lambda results: not any(results),
}
_REPETITION = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{?]|\\\d")


def order_of(order: str) -> list[str]:
    fields = []
    for part in order.split(","):
        name = part.strip().lstrip("+-")
        if name in _ORDERS:
            fields.append(("-" if part.strip().startswith("-") else "") + _ORDERS[name])
    return [*fields, "tracked__run__queued_at", "pk"]


def passes(found: WandbRun, filters: JSON) -> bool:
    """Return whether a run passes a filter in MongoDB's language. Raises WandbError for an operator not served."""
    for key, condition in filters.items():
        if key in _JOINS:
            parts = condition if isinstance(condition, list) else [condition]
            if not _JOINS[key]([passes(found, part) for part in parts if isinstance(part, dict)]):
                return False
        elif not _holds(_value(found, key), condition):
            return False
    return True


def _value(found: WandbRun, key: str) -> Any:
    area, _, name = key.partition(".")
    if area == "config":
        stated = found.config.get(name.removesuffix(".value"))
        return stated.get("value") if isinstance(stated, dict) and "value" in stated else _inner(found.config, name)
    if area in ("summary", "summary_metrics", "summaryMetrics"):
        return found.summary.get(name, _inner(found.summary, name))
    plain = {
        "state": STATES.get(RunState(found.tracked.run.state), "running"),
        "name": found.run_id,
        "displayName": found.tracked.name,
        "display_name": found.tracked.name,
        "group": found.facts.get("group"),
        "jobType": found.facts.get("job_type"),
        "job_type": found.facts.get("job_type"),
        "tags": found.facts.get("tags") or [],
        "username": found.tracked.user_name,
        "createdAt": found.tracked.run.queued_at.isoformat(),
        "created_at": found.tracked.run.queued_at.isoformat(),
        "sweep": None,
    }
    if key not in plain:
        raise WandbError(f"filter on {key[:80]!r} is not served; use state, name, group, tags, config.… or summary.…")
    return plain[key]


def _inner(values: JSON, name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
        found = found.get("value") if isinstance(found, dict) and set(found) <= {"value", "desc"} and found else found
    return found


def _holds(value: Any, condition: Any) -> bool:
    if not isinstance(condition, dict) or not any(key.startswith("$") for key in condition):
        return (
            bool(condition in value)
            if isinstance(value, list) and not isinstance(condition, list)
            else bool(value == condition)
        )
    return all(_compares(value, operator, operand) for operator, operand in condition.items())


def _compares(value: Any, operator: str, operand: Any) -> bool:
    if operator not in _OPERATORS:
        raise WandbError(f"filter operator {operator[:40]!r} is not served; use {', '.join(_OPERATORS)}")
    try:
        return bool(_OPERATORS[operator](value, operand))
    except TypeError:
        return False  # values of different kinds do not compare


def _is_in(value: Any, operand: Any) -> bool:
    return bool(set(value) & set(operand)) if isinstance(value, list) else value in operand


def _matches(value: Any, operand: Any) -> bool:
    """Search a text. A pattern with few repetitions, none of them of a group, takes no long time on a short text."""
    pattern = str(operand)
    if len(pattern) > 100 or len(_REPETITION.findall(pattern)) > 2 or _REPEATED_GROUP.search(pattern):
        raise WandbError(f"filter $regex {pattern[:80]!r} is not served; use at most two of * + {{ and repeat no group")
    try:
        return isinstance(value, str) and bool(re.search(pattern, value[:300]))
    except re.error:
        raise WandbError(f"filter $regex {pattern[:80]!r} is not a regular expression") from None


_OPERATORS: dict[str, Any] = {
    "$eq": _holds,
    "$ne": lambda value, operand: not _holds(value, operand),
    "$gt": lambda value, operand: value is not None and value > operand,
    "$gte": lambda value, operand: value is not None and value >= operand,
    "$lt": lambda value, operand: value is not None and value < operand,
    "$lte": lambda value, operand: value is not None and value <= operand,
    "$in": _is_in,
    "$nin": lambda value, operand: not _is_in(value, operand),
    "$exists": lambda value, operand: (value is not None) == bool(operand),
    "$not": lambda value, operand: not _holds(value, operand),
    "$regex": _matches,
}
