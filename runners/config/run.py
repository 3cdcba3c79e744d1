"""RunConfig, and reading a configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Self, cast

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from .fields import RunFields
from .nearest import did_you_mean
from .problems import ConfigError, Problem
from .rules import contradictions
from .sections import PLACEHOLDER, ContainerSetting, Section

_CONTAINER = "launcher.container"
_DESCRIBING = ("model", "train", "parallel")
"""Sections that describe the training of a command, if `command.describes_training` is set."""


class RunConfig(RunFields):
    """One fully described run."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = list(contradictions(self))
        if problems:
            # pydantic swallows the type of errors raised here, so the problems travel in the context.
            message = "; ".join(str(problem) for problem in problems).replace("{", "(").replace("}", ")")
            raise PydanticCustomError("contradiction", cast(Any, message), {"problems": problems})
        return self

    def resolved(self) -> dict[str, Any]:
        """Return every field with its value, defaults included."""
        data = self.model_dump(mode="json")
        data["cluster"]["gpus_per_node"] = self.gpus_per_node
        return data


def check(data: Mapping[str, Any]) -> tuple[RunConfig | None, list[Problem]]:
    """Read a configuration; return (RunConfig, []) or (None, all problems)."""
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
        beside = _fields_beside(field)
        fields = ", ".join(sorted(beside))
        names = [f"{_CONTAINER}.{name}" for name in beside] if field.startswith(f"{_CONTAINER}.") else field_names()
        hint = did_you_mean(field, names if "." in field else sections())
        remedy = f"; {hint}use one of {fields}" if fields else f"; {hint}".rstrip("; ")
        return [Problem(field, value, f"unknown field {field}{remedy}")]
    if detail["type"] == "missing":
        return [Problem(field, None, f"{field} is required; set it")]
    text = json.dumps(value, default=str)
    text = text if len(text) <= 60 else text[:57] + "..."
    reason = detail["msg"].replace("Input should be", "must be", 1)
    hint = did_you_mean(str(value), re.findall(r"'([^']+)'", reason)) if detail["type"] == "literal_error" else ""
    hint = f"; {hint.strip()}" if hint else ""
    return [Problem(field, value, f"invalid value {text} for {field}: {reason[:1].lower()}{reason[1:]}{hint}")]


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return every field with its value or its default, without checking whether they fit together.

    Raises ConfigError for unknown fields and invalid values.
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


def value_problems(field: str, value: Any) -> list[Problem]:
    """Return what is wrong with the value of one dotted field by itself: its type or its range."""
    section, _, name = field.partition(".")
    try:
        complete({section: {name: value}})
    except ConfigError as error:
        return [problem for problem in error.problems if problem.field.startswith(field)] or error.problems
    return []


def sections() -> dict[str, type[Section]]:
    """Return section name -> class, in the order of RunConfig."""
    return {name: cast(type[Section], field.annotation) for name, field in RunConfig.model_fields.items()}


def _fields_beside(field: str) -> list[str]:
    section, _, _name = field.rpartition(".")
    by_name = sections()
    if not section:
        return list(by_name)
    if section == _CONTAINER:
        return list(ContainerSetting.model_fields)
    return list(by_name[section].model_fields) if section in by_name else []


def filled_fields(resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of a resolved configuration that are facts about its command, by section.

    These are the fields that fill its arguments, and sections model, train and parallel if they describe its training.
    The other fields hold defaults.
    """
    command = resolved.get("command") or {}
    argv = command.get("argv") or []
    filled = {name.partition(".")[::2] for argument in argv for name in PLACEHOLDER.findall(argument) if "." in name}
    described = _DESCRIBING if command.get("describes_training") else ()
    return {
        section: {
            name: value
            for name, value in resolved.get(section, {}).items()
            if section in described or (section, name) in filled
        }
        for section in sections()
    }


def field_names() -> list[str]:
    """Return all dotted field names, as sweep axes name them."""
    return [f"{name}.{field}" for name, section in sections().items() for field in section.model_fields]


def with_values(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a configuration with dotted fields set to new values."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        copy.setdefault(section, {})[name] = value
    return copy
