"""Form fields of a configuration, created from the JSON schema of RunConfig."""

import json
from collections.abc import Mapping
from typing import Any, cast

from django import forms

SWEEP_EXAMPLE = '{"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}'
_SWEEP_LENGTH = 100_000
_DEEPEST = 20


class NumberField(forms.Field):
    """A number; other text passes through unchanged, so that RunConfig reports the error."""

    def __init__(self, kind: type[int] | type[float], **kwargs: Any) -> None:
        self.kind = kind
        super().__init__(**kwargs)

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        try:
            return self.kind(str(value).strip())
        except (ValueError, OverflowError):
            return value


class TreeField(forms.JSONField):
    """A list or mapping as JSON; empty for no value."""

    def __init__(self, empty: Any = None, **kwargs: Any) -> None:
        self.empty = empty
        super().__init__(**kwargs)

    def to_python(self, value: Any) -> Any:
        return self.empty if value in self.empty_values else super().to_python(value)

    def prepare_value(self, value: Any) -> Any:
        # A string is invalid input, which is redisplayed as typed.
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, Mapping) and value:  # one line per entry: a device mapping has many
            entries = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            return "{\n" + ",\n".join(entries) + "\n}"
        return super().prepare_value(value)


class SweepField(forms.CharField):
    """Axes of a sweep as JSON; empty for a single run."""

    widget = forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField code", "spellcheck": "false"})

    def __init__(self) -> None:
        super().__init__(
            required=False,
            max_length=_SWEEP_LENGTH,
            help_text="One run for each combination of values. Leave empty for a single run, or enter axes as"
            f" section.field, each with a list of values, as JSON: <code>{SWEEP_EXAMPLE}</code>",
        )

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        axes = (f"  {json.dumps(axis)}: {json.dumps(values)}" for axis, values in value.items())
        return "{\n" + ",\n".join(axes) + "\n}" if value else ""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return {}
        try:
            sweep = json.loads(text, object_pairs_hook=unique_names, parse_constant=_refuse_constant)
        except RecursionError:
            raise forms.ValidationError("the sweep is nested too deeply; use a flat list for each axis") from None
        except ValueError as error:
            raise forms.ValidationError(f"the sweep is not valid JSON: {error}; for example {SWEEP_EXAMPLE}") from error
        if _depth(sweep) > _DEEPEST:
            raise forms.ValidationError("the sweep is nested too deeply; use a flat list for each axis")
        return sweep


def form_field(name: str, schema: Mapping[str, Any]) -> forms.Field:
    """Create the form field of a configuration field from its JSON schema."""
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    is_optional = len(options) < len(schema.get("anyOf", [schema]))
    kind = options[0]
    common: dict[str, Any] = {
        "label": name,
        "help_text": schema.get("description", ""),
        "required": not is_optional,
        "error_messages": {"required": _required_message(name, schema)},
    }
    if "enum" in kind or "const" in kind:
        return _choice_field(name, kind.get("enum", [kind.get("const")]), is_optional, common)
    if kind.get("type") in ("integer", "number"):
        number = int if kind["type"] == "integer" else float
        limits = {"min": kind.get("minimum"), "max": kind.get("maximum"), "step": 1 if number is int else "any"}
        attrs = {limit: value for limit, value in limits.items() if value is not None}
        return NumberField(number, widget=forms.NumberInput(attrs=attrs), **common)
    if kind.get("type") == "boolean" and is_optional:
        return _choice_field(name, [True, False], is_optional, common)
    if kind.get("type") == "boolean":
        return forms.BooleanField(**(common | {"required": False}))
    if kind.get("type") == "string":
        return forms.CharField(empty_value=cast(str, None) if is_optional else "", **common)
    # An empty list or mapping is a valid value, so its input may be empty.
    empty = schema.get("default") if not is_optional else None
    return TreeField(
        empty,
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", "spellcheck": "false"}),
        **(common | {"required": not is_optional and empty not in ([], {})}),
    )


def _choice_field(name: str, values: list[Any], is_optional: bool, common: dict[str, Any]) -> forms.Field:
    by_text = {str(value): value for value in values}
    remedy = f"invalid {name} %(value)s; use {', '.join(by_text)}"
    return forms.TypedChoiceField(
        choices=([("", "")] if is_optional else []) + [(text, text) for text in by_text],
        coerce=lambda text: by_text[str(text)],
        empty_value=None,
        **(common | {"error_messages": common["error_messages"] | {"invalid_choice": remedy}}),
    )


def _required_message(name: str, schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return f"{name} is required; enter a value" + ("" if default is None else f", for example {default}")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary (`object_pairs_hook`); ValueError if a name occurs twice."""
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"duplicate {', '.join(repeated)}")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"invalid number {name}")


def _depth(value: Any) -> int:
    """Return the depth of nesting, without recursion."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth
