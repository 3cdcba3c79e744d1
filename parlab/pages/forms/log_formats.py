"""The form of a learnt format: one row per slot, with its meaning and unit; errors belong to a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from parlab.formats.learnt.learnt import Column, Learnt, Role
from parlab.formats.learnt.lexicon import PLAIN, QUANTITIES, RATE, UNITS, dimension_of

ROLES: dict[Role, str] = {"step": "Step number", "rank": "Rank", "ignored": "Ignore"}
OWN = "own"
"""The meaning of a slot whose name is in no lexicon: stored and drawn under its own name."""
OTHER = "other"


class Option(NamedTuple):
    value: str
    title: str
    group: str
    """For a quantity: its dimension, which selects the units that fit."""


class Row(NamedTuple):
    """A slot with the fields of the form."""

    number: int
    column: Column
    meaning: str
    unit: str
    meanings: Sequence[tuple[str, Sequence[Option]]]
    """Groups of options: title and options."""
    units: Sequence[tuple[str, Sequence[Option]]]
    error: str


class FormatForm(NamedTuple):
    """A definition as a form, with the values that a person has sent and their errors."""

    name: str
    rows: Sequence[Row]
    samples: Sequence[str]
    errors: Mapping[str, str]
    """Field -> message; "" for those of no single field."""


class Parsed(NamedTuple):
    definition: Learnt | None
    errors: dict[str, str]


def form_of(base: Learnt, sent: Mapping[str, str] | None = None, errors: Mapping[str, str] | None = None) -> FormatForm:
    """Return the form of a definition; `sent` are the values of a form that has errors."""
    sent, errors = sent or {}, errors or {}
    rows = []
    for number, column in enumerate(base.columns):
        meaning = sent.get(f"meaning-{number}", meaning_of(column))
        unit = sent.get(f"unit-{number}", unit_of(column))
        error = errors.get(f"meaning-{number}", "") or errors.get(f"unit-{number}", "")
        rows.append(Row(number, column, meaning, unit, _meanings(column), _units(column), error))
    return FormatForm(sent.get("name", base.name), rows, base.samples, errors)


def meaning_of(column: Column) -> str:
    """Return the option that is selected for a slot."""
    if column.role != "quantity":
        return column.role
    return column.name if column.name in QUANTITIES else OWN


def unit_of(column: Column) -> str:
    dimension = dimension_of(column.name)
    name = next((unit for unit, factor in UNITS[dimension].items() if factor == column.scale), None)
    return f"{dimension}:{name}" if name else OTHER


def _meanings(column: Column) -> list[tuple[str, Sequence[Option]]]:
    quantities = [Option(name, quantity.title, quantity.dimension) for name, quantity in QUANTITIES.items()]
    if column.name not in QUANTITIES:
        quantities.insert(0, Option(OWN, column.name, dimension_of(column.name)))
    return [("Quantity", quantities), ("Role", [Option(role, title, "") for role, title in ROLES.items()])]


def _units(column: Column) -> list[tuple[str, Sequence[Option]]]:
    groups: list[tuple[str, Sequence[Option]]] = [
        (dimension, [Option(f"{dimension}:{unit}", unit, dimension) for unit in units])
        for dimension, units in UNITS.items()
    ]
    if unit_of(column) == OTHER:
        dimension = dimension_of(column.name)
        groups.insert(0, ("As learnt", [Option(OTHER, f"times {column.scale:g}", dimension)]))
    return groups


def parse(base: Learnt, sent: Mapping[str, str]) -> Parsed:
    """Return the definition that a person has sent for the slots of `base`, or the errors by field."""
    errors: dict[str, str] = {}
    columns = []
    for number, column in enumerate(base.columns):
        meaning = sent.get(f"meaning-{number}", meaning_of(column))
        unit = sent.get(f"unit-{number}", unit_of(column))
        try:
            columns.append(_column(column, meaning, unit))
        except ValueError as problem:
            errors[f"unit-{number}"] = str(problem)
    name = " ".join(sent.get("name", base.name).split())
    if not name:
        errors["name"] = "name is empty; enter the name of the trainer, for example tiny-trainer"
    if errors:
        return Parsed(None, errors)
    try:
        return Parsed(Learnt.model_validate({**base.model_dump(), "name": name, "columns": columns}), {})
    except ValidationError as problem:
        for error in problem.errors():
            field = "name" if error["loc"][:1] == ("name",) else ""
            errors[field] = str(error["msg"]).removeprefix("Value error, ")
        return Parsed(None, errors)


def _column(column: Column, meaning: str, unit: str) -> Column:
    """Return a slot with another meaning and unit. Raises ValueError if they do not fit."""
    role = next((role for role in ROLES if role == meaning), None)
    if role is not None:
        return column.model_copy(update={"role": role})
    if meaning != OWN and meaning not in QUANTITIES:
        raise ValueError(f"unknown quantity {meaning[:40]!r}; select one from the list")
    name = column.name if meaning == OWN else meaning
    if meaning == OWN and name in QUANTITIES:
        raise ValueError(f"{name} is a quantity of the list; select it there")
    dimension = dimension_of(name)
    printed_dimension, _, printed_unit = unit.partition(":")
    if unit == OTHER:
        printed_dimension, scale = dimension_of(column.name), column.scale
    else:
        scale = UNITS.get(printed_dimension, {}).get(printed_unit, 0.0)
    title = QUANTITIES[name].title if name in QUANTITIES else name
    if dimension == RATE and printed_dimension == PLAIN:
        return column.model_copy(update={"role": "quantity", "name": name, "scale": 1.0})
    if scale <= 0.0 or printed_dimension != dimension:
        units = ", ".join(UNITS[dimension])
        raise ValueError(f"unit {printed_unit or unit} does not fit {title}; select one of {units}")
    return column.model_copy(update={"role": "quantity", "name": name, "scale": scale})
