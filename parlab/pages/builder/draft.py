"""What stands in the form of the sweep builder, as text, and the actions that change it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from django.http import QueryDict

from parlab.lab.forms.presets import PRESETS, Preset
from parlab.lab.models import Config
from parlab.lab.services import storable
from runners.config import RunConfig, complete
from runners.config.sweep import TOGETHER, axis_fields

from .axes import axis_text, axis_values
from .fields import BuilderField, builder_fields, text_of, value_of

MAX_AXES = 20
MAX_TEXT = 100_000
IN_ADDRESS = "draft"
"""Parameter of an address that contains a draft."""


@dataclass(frozen=True)
class AxisText:
    """One field that varies, with its values as typed."""

    path: str
    text: str
    together: str = ""
    """Dotted field whose values change together with those of this one; empty: on its own."""

    @property
    def field(self) -> BuilderField:
        return builder_fields()[self.path]


@dataclass(frozen=True)
class Draft:
    """All inputs of the form."""

    values: Mapping[str, str]
    """Dotted field -> text; every field has one."""
    axes: tuple[AxisText, ...] = ()
    name: str = ""
    question: str = ""
    note: str = ""
    shows_all: bool = False
    """Whether fields that the engine does not read are shown."""
    pasted: str = field(default="", compare=False)
    """The text of the box for JSON and command lines."""

    @classmethod
    def of_config(cls, config: Config) -> Self:
        return cls.of_data(config.data, config.sweep, note="" if config.is_used else config.note)

    @classmethod
    def of_preset(cls, preset: Preset) -> Self:
        return cls.of_data(complete(preset.data), preset.sweep)

    @classmethod
    def of_data(cls, data: Mapping[str, Any], sweep: Mapping[str, Any], **more: Any) -> Self:
        """Return the draft of stored or pasted values, whatever their types; other fields have their defaults."""
        values = {}
        for path, entry in builder_fields().items():
            section, _, name = path.partition(".")
            content = data.get(section)
            value = content.get(name, entry.default) if isinstance(content, Mapping) else entry.default
            values[path] = text_of(entry, value)
        return cls(values, tuple(axes_of(sweep)), **more)

    @classmethod
    def of_post(cls, post: QueryDict) -> Self:
        """Read the form as it was sent."""
        values = {
            path: storable.text(post.get(path, text_of(entry, entry.default)))[:MAX_TEXT]
            for path, entry in builder_fields().items()
        }
        rows = zip(post.getlist("axis"), post.getlist("axis-values"), post.getlist("axis-with"), strict=False)
        axes = [
            AxisText(path, storable.text(text)[:MAX_TEXT], together)
            for path, text, together in rows
            if path in builder_fields()
        ]
        return cls(
            values,
            tuple(axes[:MAX_AXES]),
            storable.text(post.get("name", "")).strip()[:500],
            storable.text(post.get("question", "")).strip(),
            storable.text(post.get("note", "")).strip()[:300],
            "all" in post,
            post.get("pasted", "")[:MAX_TEXT].replace("\r\n", "\n"),
        )

    def query(self) -> str:
        """Return the draft as the query of an address, without what has its default; `of_post` reads it again."""
        query = QueryDict(mutable=True)
        query[IN_ADDRESS] = "1"
        for path, entry in builder_fields().items():
            if self.values[path] != text_of(entry, entry.default):
                query[path] = self.values[path]
        for axis in self.axes:
            query.appendlist("axis", axis.path)
            query.appendlist("axis-values", axis.text)
            query.appendlist("axis-with", axis.together)
        texts = {"name": self.name, "question": self.question, "note": self.note, "all": "on" if self.shows_all else ""}
        for name, text in texts.items():
            if text:
                query[name] = text
        return query.urlencode()

    @property
    def varied(self) -> set[str]:
        return {axis.path for axis in self.axes}

    def with_content(self, other: Draft) -> Draft:
        """Return this draft with the fields and axes of another."""
        return replace(self, values=other.values, axes=other.axes)

    def with_engine(self, engine: str) -> Draft:
        """Return a new draft of an engine: the first preset of that engine without its sweep, else the defaults."""
        preset = next((row for row in PRESETS.values() if row.data["parallel"].get("engine") == engine), None)
        data = preset.data if preset else {"parallel": {"engine": engine}}
        return self.with_content(Draft.of_data(data, {}))

    def vary(self, path: str) -> Draft:
        """Make a field an axis of its present value."""
        if path not in builder_fields() or path in self.varied or len(self.axes) >= MAX_AXES:
            return self
        entry = builder_fields()[path]
        value = value_of(entry, self.values[path])
        return replace(self, axes=(*self.axes, AxisText(path, axis_text(entry, [value]))))

    def fix(self, path: str) -> Draft:
        """Turn an axis back into a field with the first of its values."""
        values = dict(self.values)
        axis = next((axis for axis in self.axes if axis.path == path), None)
        if axis is None:
            return self
        first = _readable(axis)
        if first:
            values[path] = text_of(axis.field, first[0])
        rest = [
            replace(other, together="" if other.together == path else other.together)
            for other in self.axes
            if other.path != path
        ]
        return replace(self, values=values, axes=tuple(rest))

    def add(self, path: str, text: str) -> Draft:
        """Add a value to an axis; a field that does not vary becomes an axis of its value and the new one."""
        if path not in builder_fields():
            return self
        draft = self if path in self.varied else self.vary(path)
        return draft._with_axis(path, lambda axis: f"{axis.text.rstrip(', ')}, {text}" if axis.text.strip() else text)

    def drop(self, path: str, index: int) -> Draft:
        """Remove one value of an axis; a range becomes the list of its other values."""

        def without(axis: AxisText) -> str:
            values = _readable(axis)
            return axis_text(axis.field, values[:index] + values[index + 1 :]) if values else axis.text

        return self._with_axis(path, without)

    def move(self, path: str) -> Draft:
        """Move an axis up by one place: the first axis changes slowest."""
        axes = list(self.axes)
        at = next((at for at, axis in enumerate(axes) if axis.path == path), 0)
        if at:
            axes[at - 1], axes[at] = axes[at], axes[at - 1]
        return replace(self, axes=tuple(axes))

    def _with_axis(self, path: str, text_of_axis: Any) -> Draft:
        axes = [replace(axis, text=text_of_axis(axis)) if axis.path == path else axis for axis in self.axes]
        return replace(self, axes=tuple(axes))


def axes_of(sweep: Mapping[str, Any]) -> list[AxisText]:
    """Return the axes of a stored sweep as text; fields that no longer exist are left out."""
    axes: list[AxisText] = []
    for axis, values in sweep.items():
        paths = [path for path in axis_fields(axis) if path in builder_fields()]
        columns = _columns(values, len(axis_fields(axis)))
        if len(paths) < len(axis_fields(axis)):
            continue
        for path, column in zip(paths, columns, strict=True):
            axes.append(AxisText(path, axis_text(builder_fields()[path], column), "" if path == paths[0] else paths[0]))
    return axes


def _columns(values: Any, count: int) -> list[list[Any]]:
    rows = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    if count == 1:
        return [rows]
    return [[row[at] for row in rows if isinstance(row, Sequence) and at < len(row)] for at in range(count)]


def _readable(axis: AxisText) -> list[Any]:
    try:
        return axis_values(axis.field, axis.text)
    except ValueError:
        return []


def zipped(axes: Sequence[AxisText]) -> list[list[AxisText]]:
    """Group the axes that change together, in their order."""
    groups: list[list[AxisText]] = []
    for axis in axes:
        group = next((group for group in groups if axis.together and group[0].path == axis.together), None)
        if group is None:
            groups.append([axis])
        else:
            group.append(axis)
    return groups


def axis_name(group: Sequence[AxisText]) -> str:
    """Return the name of an axis in a sweep: one dotted field, or several that change together."""
    return f"{TOGETHER} ".join(axis.path for axis in group)


def as_json(data: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    """Return the fields that differ from their defaults, and the sweep, as JSON."""
    defaults = RunConfig().model_dump(mode="json")
    sections: dict[str, Any] = {}
    for section, fields in data.items():
        own = {name: value for name, value in fields.items() if value != defaults[section].get(name)}
        if section == "parallel":
            own = {"engine": fields.get("engine")} | own
        if own:
            sections[section] = own
    if sweep:
        sections["sweep"] = sweep
    return json.dumps(sections, indent=2, default=str)
