"""RunConfig, and how a configuration is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self, cast

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from .fields import RunFields
from .problems import ConfigError, Problem
from .rules import contradictions
from .sections import PLACEHOLDER, Section


class RunConfig(RunFields):
    """One fully described training run."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = list(contradictions(self))
        if problems:
            # pydantic swallows the type of errors raised here, so the problems travel in the context.
            message = "; ".join(str(problem) for problem in problems).replace("{", "(").replace("}", ")")
            raise PydanticCustomError("contradiction", cast(Any, message), {"problems": problems})
        return self

    def resolved(self) -> dict[str, Any]:
        """Every field with its value, none left to a default."""
        data = self.model_dump(mode="json")
        data["cluster"]["gpus_per_node"] = self.gpus_per_node
        return data


def check(data: Mapping[str, Any]) -> tuple[RunConfig | None, list[Problem]]:
    """Read a configuration: (RunConfig, []) or (None, every problem that could be found)."""
    try:
        return RunConfig.model_validate(data), []
    except ValidationError as error:
        return None, [problem for detail in error.errors() for problem in _problems_of(detail)]


def _problems_of(detail: ErrorDetails) -> list[Problem]:
    if "problems" in detail.get("ctx", {}):
        return list(detail["ctx"]["problems"])
    field = ".".join(str(part) for part in detail["loc"])
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        known = ", ".join(sorted(_fields_beside(field)))
        return [Problem(field, value, f"unknown field {field}; known here: {known or 'none'}")]
    if detail["type"] == "missing":
        return [Problem(field, None, f"{field} is missing; give it a value")]
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    reason = detail["msg"]
    return [Problem(field, value, f"{shown} cannot be {field}: {reason[:1].lower()}{reason[1:]}")]


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """Every field with its value or its default, whether or not they fit together.

    Raises ConfigError for unknown fields and for values that a field cannot have.
    """
    try:
        return RunConfig.model_validate(data).model_dump(mode="json")
    except ValidationError as error:
        problems = [
            problem
            for detail in error.errors()
            if detail["type"] != "contradiction"
            for problem in _problems_of(detail)
        ]
    if problems:
        raise ConfigError(problems)
    return {
        name: section.model_validate(data.get(name, {})).model_dump(mode="json") for name, section in sections().items()
    }


def sections() -> dict[str, type[Section]]:
    """Section name -> its class, in the order in which people think of them."""
    return {name: cast(type[Section], field.annotation) for name, field in RunConfig.model_fields.items()}


def _fields_beside(field: str) -> list[str]:
    section, _, _name = field.rpartition(".")
    known = sections()
    if not section:
        return list(known)
    return list(known[section].model_fields) if section in known else []


def filled_fields(resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Keep of a resolved configuration of engine command the fields that its command was filled with, by section.

    Of its other fields nobody told the command anything: they hold defaults, not facts.
    """
    argv = (resolved.get("command") or {}).get("argv") or []
    named = {name.partition(".")[::2] for argument in argv for name in PLACEHOLDER.findall(argument) if "." in name}
    return {
        section: {name: value for name, value in resolved.get(section, {}).items() if (section, name) in named}
        for section in sections()
    }


def field_names() -> list[str]:
    """All dotted field names, as sweep axes name them."""
    return [f"{name}.{field}" for name, section in sections().items() for field in section.model_fields]


def with_values(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a configuration with dotted fields set to new values."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        copy.setdefault(section, {})[name] = value
    return copy
