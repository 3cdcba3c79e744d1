"""Text pasted into the sweep builder: JSON with or without a sweep, dotted fields, a map of shards, or a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.ingest.command_flags import DEEPSPEED, Flags, config_of_command, config_of_deepspeed
from runners.config import ENGINES, Problem, ShardingSection, field_names, sections
from runners.config.nearest import did_you_mean
from runners.config.sweep import axis_fields

from .draft import Draft
from .fields import builder_fields, text_of

PLACE = "pasted"
"""The box that the text stands in."""


class Pasting(NamedTuple):
    """A draft with pasted values, or what is wrong with the text."""

    draft: Draft
    summary: str
    problems: list[Problem]


def paste(draft: Draft) -> Pasting:
    """Fill the draft with the text in its box; values of fields are taken as they are, and checked at their fields."""
    text = draft.pasted.strip()
    if not text:
        return Pasting(draft, "", [Problem(PLACE, "", "the box is empty; paste JSON or a command line")])
    if text.startswith("{"):
        return _of_json(draft, text)
    try:
        flags = config_of_command(text)
    except ValueError as error:
        return Pasting(draft, "", [Problem(PLACE, text[:60], f"cannot read the command line: {error}")])
    summary = f"Filled {_count(flags.data)} fields from the command line.{_ignored(flags)}"
    return Pasting(draft.with_content(Draft.of_data(flags.data, {})), summary, [])


def _ignored(flags: Flags) -> str:
    return f" Ignored: {', '.join(flags.unread)}." if flags.unread else ""


def _of_deepspeed(draft: Draft, content: Mapping[str, Any]) -> Pasting:
    flags = config_of_deepspeed(content)
    own = Draft.of_data(flags.data, {}).values
    stated = {f"{section}.{name}" for section, fields in flags.data.items() for name in fields}
    model = {path: text for path, text in draft.values.items() if path.startswith("model.")}
    start = draft.with_engine(flags.data["parallel"]["engine"])
    values = {**start.values, **model, **{path: own[path] for path in stated}}
    summary = f"Filled {len(stated)} fields from DeepSpeed's JSON; the model keeps its values.{_ignored(flags)}"
    return Pasting(start.with_content(Draft(values)), summary, [])


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; ValueError if a name occurs twice."""
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"duplicate {', '.join(repeated)}")
    return dict(pairs)


def _of_json(draft: Draft, text: str) -> Pasting:
    try:
        content = json.loads(text, object_pairs_hook=_unique_names)
    except (ValueError, RecursionError) as error:
        remedy = "paste the whole object, from the first brace to the last"
        return Pasting(draft, "", [Problem(PLACE, text[:60], f"the text is not valid JSON: {error}; {remedy}")])
    if set(content) & DEEPSPEED:
        return _of_deepspeed(draft, content)
    if set(content) <= {"data", "sweep", "note"} and isinstance(content.get("data"), Mapping):
        content = {**content["data"], "sweep": content.get("sweep", {})}  # as the API returns it
    if content and set(content) <= set(ShardingSection.model_fields):
        engine = {"parallel.engine": next(engine.name for engine in ENGINES.values() if engine.has_device_map)}
        shards = Draft.of_data({"sharding": content}, {}).values
        own = {path: value for path, value in shards.items() if path.startswith("sharding.")}
        filled = Draft({**draft.values, **engine, **own}, draft.axes)
        return Pasting(draft.with_content(filled), "Filled the map of shards; model and batch keep their values.", [])
    if content and set(content) <= set(field_names()):
        return _of_axes(draft, content)
    sweep = content.pop("sweep", {})
    if isinstance(sweep, Mapping):
        content, sweep = _with_lists_as_axes(content, sweep)
    problems = [*_unknown_names(content), *_sweep_problems(sweep)]
    if problems:
        return Pasting(draft, "", problems)
    filled = Draft.of_data(content, sweep)
    axes = f" and {len(filled.axes)} varied fields" if filled.axes else ""
    summary = f"Filled {_count(content)} fields{axes}; all others have their defaults."
    return Pasting(draft.with_content(filled), summary, [])


def _of_axes(draft: Draft, content: Mapping[str, Any]) -> Pasting:
    """Read dotted fields: a list varies its field, another value sets it; the rest of the draft stays."""
    axes = {path: value for path, value in content.items() if _is_axis(path, value)}
    if problems := _sweep_problems(axes):
        return Pasting(draft, "", problems)
    values = {path: text_of(builder_fields()[path], value) for path, value in content.items() if path not in axes}
    kept = [axis for axis in draft.axes if axis.path not in content]
    filled = Draft({**draft.values, **values}, (*kept, *Draft.of_data({}, axes).axes))
    summary = f"Set {len(values)} fields and varied {len(axes)}; all others keep their values."
    return Pasting(draft.with_content(filled), summary, [])


def _with_lists_as_axes(content: Mapping[str, Any], sweep: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move lists in fields of one value to the sweep: {"train": {"micro_batch_size": [1, 2]}} varies it."""
    single, axes = {}, dict(sweep)
    for section, fields in content.items():
        if not isinstance(fields, Mapping):
            single[section] = fields
            continue
        lists = {name: value for name, value in fields.items() if _is_axis(f"{section}.{name}", value)}
        axes |= {f"{section}.{name}": value for name, value in lists.items() if f"{section}.{name}" not in axes}
        single[section] = {name: value for name, value in fields.items() if name not in lists}
    return single, axes


def _is_axis(path: str, value: Any) -> bool:
    entry = builder_fields().get(path)
    return isinstance(value, list) and entry is not None and not entry.is_tree


def _unknown_names(content: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for section, fields in content.items():
        if section not in sections():
            hint = did_you_mean(section, [*sections(), "sweep"])
            problems.append(Problem(PLACE, section, f"unknown section {section}; {hint}use {', '.join(sections())}"))
        elif not isinstance(fields, Mapping):
            problems.append(Problem(PLACE, fields, f'section {section} must be an object, like {{"{section}": {{}}}}'))
        else:
            problems += [
                _unknown_field(f"{section}.{name}") for name in fields if name not in sections()[section].model_fields
            ]
    return problems


def _sweep_problems(sweep: Any) -> list[Problem]:
    if not isinstance(sweep, Mapping):
        return [Problem(PLACE, sweep, 'the sweep must map fields to lists, like {"train.micro_batch_size": [1, 2]}')]
    problems = [_unknown_field(path) for axis in sweep for path in axis_fields(axis) if path not in set(field_names())]
    for axis, values in sweep.items():
        count = len(axis_fields(axis))
        if not isinstance(values, list) or not values:
            problems.append(Problem(PLACE, values, f"axis {axis} requires a list of values, like [1, 2, 4]"))
        elif count > 1 and not all(isinstance(row, list) and len(row) == count for row in values):
            message = f"axis {axis} has {count} fields; write each of its points as a list of {count} values"
            problems.append(Problem(PLACE, values, message))
    return problems


def _unknown_field(path: str) -> Problem:
    hint = did_you_mean(path, field_names()) or "search for it in the list of fields"
    return Problem(PLACE, path, f"unknown field {path}; {hint.strip()}")


def _count(data: Mapping[str, Any]) -> int:
    return sum(len(fields) for fields in data.values())
