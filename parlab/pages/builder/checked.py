"""A draft read as a configuration and a sweep, with everything that is wrong with it at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.lab.services.runs import launchable
from runners.config import ConfigError, Point, Problem, check, complete, expand, sweep_problems, value_problems

from .axes import axis_values, value_text
from .draft import AxisText, Draft, axis_name, zipped
from .fields import BuilderField, builder_fields, required_problem, value_of

_REPEATED = "lists {values} more than once; list each value once"


class Chip(NamedTuple):
    """One value of an axis."""

    text: str
    is_valid: bool


class AxisRow(NamedTuple):
    """One axis of the draft with its values."""

    axis: AxisText
    chips: list[Chip]
    problems: list[str]
    others: list[str]
    """Choices of the field that the axis does not contain."""

    @property
    def field(self) -> BuilderField:
        return self.axis.field

    @property
    def html_id(self) -> str:
        return f"a-{self.axis.path.replace('.', '-')}"


class Checked(NamedTuple):
    """A draft as configuration and sweep."""

    data: dict[str, dict[str, Any]]
    """Values as typed, by section."""
    sweep: dict[str, list[Any]]
    axes: list[AxisRow]
    problems: list[Problem]
    """Of fields and axes; nothing is saved while there is one."""
    points: list[Point]
    """Empty while a field or an axis cannot be read."""

    @property
    def impossible(self) -> list[Point]:
        return [point for point in self.points if point.config is None]

    @property
    def possible(self) -> list[Point]:
        return [point for point in self.points if point.config is not None]


def checked(draft: Draft) -> Checked:
    """Read a draft; all problems of fields, axes and of how they fit together are returned at once."""
    data, problems = _fields(draft)
    rows, values = _axes(draft)
    problems += [Problem(row.axis.path, row.axis.text, message) for row in rows for message in row.problems]
    sweep, uneven = _sweep(draft, values)
    problems += uneven
    if not problems:
        problems = sweep_problems(sweep)
    if problems:
        return Checked(data, sweep, rows, problems + _contradictions(draft, data, problems), [])
    points = [launchable(point) for point in expand(data, sweep)]
    return Checked(data, sweep, rows, _of_all_points(points), points)


def _fields(draft: Draft) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Return the values of the fields, and those with a wrong type or range; of axes, the value does not matter."""
    data: dict[str, dict[str, Any]] = {}
    problems = []
    for path, entry in builder_fields().items():
        section, _, name = path.partition(".")
        text = draft.values[path]
        missing = required_problem(entry, text)
        value = value_of(entry, text)
        if path in draft.varied and (missing or value_problems(path, value)):
            missing, value = None, entry.default
        if missing:
            problems.append(missing)
            value = entry.default
        data.setdefault(section, {})[name] = value
    try:
        data = complete(data)
    except ConfigError as error:
        problems += error.problems
    return data, problems


def _axes(draft: Draft) -> tuple[list[AxisRow], dict[str, list[Any]]]:
    rows, values = [], {}
    for axis in draft.axes:
        entry, problems, chips = axis.field, [], []
        try:
            values[axis.path] = own = axis_values(entry, axis.text)
        except ValueError as error:
            own, problems = [], [str(error)]
        else:
            if not own:
                problems = ["enter at least one value, like " + _example(entry)]
            invalid = {value_text(entry, value): value_problems(axis.path, value) for value in own}
            problems += [problem.message for wrong in invalid.values() for problem in wrong]
            chips = [Chip(value_text(entry, value), not invalid[value_text(entry, value)]) for value in own]
            problems += _repeated(draft, axis, own)
        texts = {chip.text for chip in chips}
        rows.append(AxisRow(axis, chips, problems, [name for name in entry.choices if name not in texts]))
    return rows, values


def _repeated(draft: Draft, axis: AxisText, values: list[Any]) -> list[str]:
    """Return the problem of values that an axis lists twice; values that change together with others may repeat."""
    if axis.together or any(other.together == axis.path for other in draft.axes):
        return []
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    repeated = sorted({text for text in texts if texts.count(text) > 1})
    return [_REPEATED.format(values=", ".join(repeated))] if repeated else []


def _example(entry: BuilderField) -> str:
    if entry.choices:
        return ", ".join(entry.choices[:2])
    return "1, 2, 4 or 1..64 ×2" if entry.is_number else entry.default_text or "a, b"


def _sweep(draft: Draft, values: Mapping[str, list[Any]]) -> tuple[dict[str, list[Any]], list[Problem]]:
    """Return the sweep of the axes that could be read, and the problems of axes that change together."""
    sweep: dict[str, list[Any]] = {}
    problems = []
    for group in zipped(draft.axes):
        columns = [values.get(axis.path, []) for axis in group]
        for axis, column in zip(group, columns, strict=True):
            if len(column) != len(columns[0]) and column and columns[0]:
                message = (
                    f"has {len(column)} values, but {group[0].path}, which changes with it, has {len(columns[0])};"
                    " give both the same number"
                )
                problems.append(Problem(axis.path, axis.text, message))
        rows = [list(row) for row in zip(*columns, strict=False)]
        sweep[axis_name(group)] = columns[0] if len(group) == 1 else rows
    return sweep, problems


def _contradictions(draft: Draft, data: Mapping[str, Any], problems: list[Problem]) -> list[Problem]:
    """Return how the valid fields do not fit together, while other fields or axes are invalid."""
    invalid = {problem.field for problem in problems} | draft.varied
    valid = {
        section: {name: value for name, value in fields.items() if f"{section}.{name}" not in invalid}
        for section, fields in data.items()
    }
    names = {field.rpartition(".")[2] for field in invalid}
    # A problem that names an invalid field is about its default, which was not typed.
    return [
        problem
        for problem in check(valid)[1]
        if problem.field not in invalid and not any(name in problem.message for name in names)
    ]


def _of_all_points(points: list[Point]) -> list[Problem]:
    """Return the problems of a sweep in which no point can run: those that all points share, or all of the first."""
    if any(point.config for point in points):
        return []
    shared = [
        problem
        for problem in points[0].problems
        if all(problem.message in {other.message for other in point.problems} for point in points)
    ]
    if shared:
        return shared
    return [Problem("", len(points), f"none of the {len(points)} points can run: {points[0].problems[0].message}")]
