"""Validation errors of a request as problems of its fields, each with value and remedy."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from .faults import Faults
from .fields import unknown_field
from .request import PlanRequest

_REMEDIES = {
    "int_parsing": "use a whole number",
    "int_type": "use a whole number",
    "int_parsing_size": "use a smaller number",
    "int_from_float": "use a whole number",
    "float_parsing": "use a number",
    "float_type": "use a number",
    "bool_parsing": "use true or false",
    "bool_type": "use true or false",
    "string_type": "use a text",
    "model_type": 'the question is not a JSON object; use one such as {{"layers": 24}}',
    "string_too_short": "use {min_length} characters or more",
    "string_too_long": "use {max_length} characters or fewer",
    "finite_number": "use a finite number",
    "greater_than": "use more than {gt}",
    "greater_than_equal": "use {ge} or more",
    "less_than_equal": "use {le} or less",
    "literal_error": "use {expected}",
}


class Refusal(NamedTuple):
    """A problem with one field of a request."""

    field: str
    value: str
    message: str


def _of_fault(message: str) -> Refusal:
    """Return an impossible combination, whose message begins with field and value."""
    field, _, rest = message.partition(" ")
    return Refusal(field, rest.partition(" ")[0], message)


def refusals(error: ValidationError) -> list[Refusal]:
    """Return the problems of a request, one per field or impossible combination."""
    problems: list[Refusal] = []
    for detail in error.errors():
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Faults):
            problems += [_of_fault(problem) for problem in cause.problems]
            continue
        field = str(detail["loc"][0])[:60] if detail["loc"] else ""
        value = detail["input"]
        text = "" if isinstance(value, dict | PlanRequest) else str(value)[:60]
        remedy = _REMEDIES.get(detail["type"], "")
        message = remedy.format(**detail.get("ctx", {})) or detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = unknown_field(field, PlanRequest.model_fields)
        elif field:
            message = f"{field} {text or '(empty)'} is invalid: {message[:1].lower()}{message[1:]}"
        else:
            field = message.split(" ")[0]
        problems.append(Refusal(field, text, message))
    return problems
