"""Values of an axis as text: lists, and ranges such as `1..64 ×2`, `1..8` and `1..9 +2`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .fields import UNSET, BuilderField, text_of, value_of

MAX_VALUES = 500
"""Values of one axis."""
_OPERATOR = re.compile(r"\s*([×*+]|(?<=[\d\s])x(?=\s*\d))\s*")
_RANGE = re.compile(r"(?P<first>[^.\s]+(?:\.\d+)?)\s*\.\.\s*(?P<last>[^×*x+\s]+)(?:(?P<by>[×*x+])(?P<step>.+))?")
_OPEN, _CLOSE = "[{(", "]})"


def axis_values(field: BuilderField, text: str) -> list[Any]:
    """Return the values of an axis. Raises ValueError for a range that cannot be read."""
    values: list[Any] = []
    for token in _tokens(field, text):
        values += _range(field, token) if field.is_number and ".." in token else [_value(field, token)]
        if len(values) > MAX_VALUES:
            raise ValueError(f"the axis has more than {MAX_VALUES} values; use a larger step")
    return values


def axis_text(field: BuilderField, values: Sequence[Any]) -> str:
    """Return values as the text of an axis, which `axis_values` reads back."""
    return ", ".join(value_text(field, value) for value in values)


def value_text(field: BuilderField, value: Any) -> str:
    """Return one value as it stands in the text of an axis."""
    if value is None:
        return UNSET
    if isinstance(value, str):
        return json.dumps(value) if re.search(r"[\s,\"\[\]{}]", value) or value in ("", UNSET) else value
    return json.dumps(value) if field.is_tree else text_of(field, value)


def _value(field: BuilderField, token: str) -> Any:
    if token == UNSET and field.is_optional:
        return None
    if token.startswith('"') and not field.is_tree:
        try:
            token = str(json.loads(token))
        except ValueError:
            return token
    return value_of(field, token)


def _tokens(field: BuilderField, text: str) -> list[str]:
    """Split at commas and spaces outside of brackets and quotes; text and trees are split at commas only."""
    if field.is_number:
        text = re.sub(r"\s*\.\.\s*", "..", _OPERATOR.sub(lambda match: match[1], text))
    separators = ",;\n" if field.kind in ("text", "tree") else ",; \t\n"
    tokens, current, depth, is_quoted = [], "", 0, False
    for at, letter in enumerate(text):
        if letter == '"' and not (at and text[at - 1] == "\\"):
            is_quoted = not is_quoted
        if not is_quoted:
            depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter in separators and depth <= 0 and not is_quoted:
            tokens.append(current.strip())
            current = ""
        else:
            current += letter
    return [token for token in [*tokens, current.strip()] if token]


def _range(field: BuilderField, token: str) -> list[Any]:
    match = _RANGE.fullmatch(token)
    ends: list[Any] = [value_of(field, match[name] or "1") for name in ("first", "last", "step")] if match else []
    if not match or any(isinstance(value, str) for value in ends):
        raise ValueError(f"cannot read {token}; write a range like 1..64 ×2, 1..8 or 1..9 +2")
    first, last, step = ends
    is_factor = match["by"] in ("×", "*", "x")
    if (is_factor and (step <= 1 or first <= 0)) or step <= 0 or first > last:
        raise ValueError(
            f"the range {token} has no end; start at the smaller value, with a step above {1 if is_factor else 0}"
        )
    values = [first]
    while len(values) <= MAX_VALUES:
        # From the first value, so that the rounding errors of fractions do not add up.
        count = len(values)
        value = first * step**count if is_factor else first + step * count
        value = round(value, 12) if isinstance(value, float) else value
        if value > last:
            break
        values.append(value)
    return values
