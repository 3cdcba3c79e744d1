"""Metrics, parameters and tags of requests: checked, with errors in MLflow's words."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from parlab.tracking.point import Point

from .protocol import clean, integer, invalid, invalid_value, real, required

KEY_LENGTH = 250
PARAMETER_LENGTH = 6_000
TAG_LENGTH = 8_000
MAX_STEP = 2**31 - 1
MAX_TIME_MS = 10**14
_KEY = re.compile(r"[/\w.\- :]*")


def points_of(items: Sequence[Mapping[str, Any]], place: str) -> list[Point]:
    """Read the metrics of a request; raises MlflowError for the first that is invalid."""
    points: list[Point] = []
    checked: set[str] = set()
    for index, item in enumerate(items):
        # What clients send nearly always; everything else goes through all checks.
        try:
            key, value, timestamp, step = item["key"], item["value"], item["timestamp"], item["step"]
            is_plain = (
                key in checked
                and type(value) is float
                and type(timestamp) is int
                and 0 <= timestamp < MAX_TIME_MS
                and type(step) is int
                and -MAX_STEP <= step <= MAX_STEP
            )
        except (KeyError, TypeError):
            is_plain = False
        if is_plain:
            points.append(Point(key, value, timestamp, step))
            continue
        point = point_of(item, f"{place}[{index}]." if place else "")
        checked.add(point.key)
        points.append(point)
    return points


def point_of(item: Mapping[str, Any], place: str) -> Point:
    key, value = key_of(item.get("key"), f"{place}key"), real(item.get("value"))
    if value is None:
        if item.get("value") is None:
            raise required(f"{place}value")
        raise invalid_value(f"{place}value", item.get("value"), f"metric {key!r} needs a number")
    if place and item.get("timestamp") is None:
        raise required(f"{place}timestamp")
    timestamp, step = integer(item.get("timestamp", 0)), integer(item.get("step") or 0)
    if timestamp is None or not 0 <= timestamp < MAX_TIME_MS:
        raise invalid_value(f"{place}timestamp", item.get("timestamp"), "expected unix milliseconds")
    if step is None or not -MAX_STEP <= step <= MAX_STEP:
        raise invalid_value(f"{place}step", item.get("step"), f"expected an integer up to {MAX_STEP}")
    return Point(key, value, timestamp, step)


def text_pair(item: Mapping[str, Any], place: str, at_most: int) -> tuple[str, str]:
    """Read key and value of a parameter or tag; a long value is cut off, as MLflow's server does."""
    prefix = f"{place}." if place else ""
    key, value = key_of(item.get("key"), f"{prefix}key"), item.get("value", "")
    if not isinstance(value, str) and value is not None:
        raise invalid_value(f"{prefix}value", value, "expected a string")
    return key, clean(value or "")[:at_most]


def key_of(value: Any, place: str) -> str:
    """Check the name of a metric, parameter or tag."""
    if value is None or value == "":
        raise required(place)
    if not isinstance(value, str):
        raise invalid_value(place, value, "expected a string")
    if len(value) > KEY_LENGTH:
        raise invalid(f"'{place}' exceeds the maximum length of {KEY_LENGTH} characters, got {len(value)} characters")
    if not _KEY.fullmatch(value):
        raise invalid_value(
            place,
            value,
            "Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and"
            " slashes (/).",
        )
    normal = posixpath.normpath(value)
    if normal != value or normal == "." or normal.startswith(("..", "/")):
        raise invalid_value(
            place,
            value,
            "Names may be treated as files in certain cases, and must not resolve to other names when treated as such."
            f" This name would resolve to {normal!r}",
        )
    return value
