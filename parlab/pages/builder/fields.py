"""The fields of a configuration as the sweep builder shows them: label, unit, meaning, and values as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from parlab.charts.fields import label_of, unit_of
from parlab.charts.format import field_title
from parlab.lab.forms.config_layout import TITLES, section_names
from runners.config import engine_names, sections
from runners.config.problems import Problem

UNSET = "unset"
"""An axis value that leaves an optional field empty."""
_BOOLEANS = {"true": True, "false": False}
_LONGEST_TEXT = 20


class BuilderField(NamedTuple):
    path: str
    """Dotted name, as used in sweeps."""
    label: str
    unit: str
    help: str
    kind: str
    """number, integer, choice, boolean, text or tree."""
    choices: tuple[str, ...]
    default: Any
    is_optional: bool

    @property
    def html_id(self) -> str:
        return f"f-{self.path.replace('.', '-')}"

    @property
    def default_text(self) -> str:
        text = text_of(self, self.default)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "integer")

    @property
    def is_tree(self) -> bool:
        return self.kind == "tree"


class BuilderSection(NamedTuple):
    name: str
    title: str
    help: str
    fields: list[BuilderField]


@cache
def builder_sections() -> tuple[BuilderSection, ...]:
    """Return the sections in the order of the form."""
    models = sections()
    layout = []
    for name in section_names():
        properties = models[name].model_json_schema().get("properties", {})
        fields = [_field(f"{name}.{field}", schema) for field, schema in properties.items()]
        if fields:
            description = " ".join((models[name].__doc__ or "").split())
            layout.append(BuilderSection(name, TITLES.get(name, field_title(name)), description, fields))
    return tuple(layout)


@cache
def builder_fields() -> dict[str, BuilderField]:
    """Return dotted name -> field."""
    return {field.path: field for section in builder_sections() for field in section.fields}


def _field(path: str, schema: Mapping[str, Any]) -> BuilderField:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    is_optional = len(options) < len(schema.get("anyOf", [schema]))
    kind, choices = _kind(options[0])
    if path == "parallel.engine":
        choices = tuple(engine_names(lambda _row: True))
    help_text = " ".join(schema.get("description", "").split())
    return BuilderField(
        path, label_of(path), unit_of(path), help_text, kind, choices, schema.get("default"), is_optional
    )


def _kind(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    if "enum" in schema or "const" in schema:
        return "choice", tuple(str(value) for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", ""))
    if kind in ("integer", "number"):
        return kind, ()
    if kind == "boolean":
        return kind, tuple(_BOOLEANS)
    return ("text" if kind == "string" else "tree"), ()


def text_of(field: BuilderField, value: Any) -> str:
    """Return a value as text for the input of its field; values of another type as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if field.is_tree and isinstance(value, Mapping) and value:  # one line per entry: a device mapping has many
        entries = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return "{\n" + ",\n".join(entries) + "\n}"
    return json.dumps(value, default=str)


def value_of(field: BuilderField, text: str) -> Any:
    """Return the value that a text stands for; text that cannot be read stays text, so that RunConfig reports it."""
    text = text.strip()
    if not text and field.is_optional:
        return None
    if not text and field.is_tree:
        return field.default
    if field.kind == "boolean":
        return _BOOLEANS.get(text.lower(), text)
    if field.kind == "choice":
        return int(text) if text.removeprefix("-").isdecimal() and text in field.choices else text
    if field.is_number:
        return _field_number(field, text)
    if field.is_tree:
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _field_number(field: BuilderField, text: str) -> Any:
    kinds: tuple[type[int] | type[float], ...] = (int,) if field.kind == "integer" else (int, float)
    for kind in kinds:
        with suppress(ValueError, OverflowError):
            return kind(text)
    return text


def required_problem(field: BuilderField, text: str) -> Problem | None:
    """Return the problem of an empty input whose field requires a value."""
    if text.strip() or field.is_optional or field.kind in ("text", "tree"):
        return None
    return Problem(field.path, "", f"{field.path} is required; enter a value, for example {field.default_text}")
