"""The fields of a configuration's form, each made from the JSON schema of its field of RunConfig."""

import json
from collections.abc import Mapping
from typing import Any, cast

from django import forms

SWEEP_EXAMPLE = '{"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}'
_SWEEP_LENGTH = 100_000
_DEEPEST = 20


class NumberField(forms.Field):
    """A number, or what was typed instead of one: RunConfig says what is wrong with it."""

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
    """A list or a mapping as JSON; empty for none."""

    def __init__(self, empty: Any = None, **kwargs: Any) -> None:
        self.empty = empty
        super().__init__(**kwargs)

    def to_python(self, value: Any) -> Any:
        return self.empty if value in self.empty_values else super().to_python(value)

    def prepare_value(self, value: Any) -> Any:
        # Text is what was typed, to be shown again as it is.
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, Mapping) and value:  # one line for each entry: a map of stages has many
            entries = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            return "{\n" + ",\n".join(entries) + "\n}"
        return super().prepare_value(value)


class SweepField(forms.CharField):
    """Axes of a sweep as JSON; empty for none."""

    widget = forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField code", "spellcheck": "false"})

    def __init__(self) -> None:
        super().__init__(
            required=False,
            max_length=_SWEEP_LENGTH,
            help_text="Every combination of these values is a run. Empty for one run, otherwise axes as section.field,"
            f" each with its values, as JSON: <code>{SWEEP_EXAMPLE}</code>",
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
            sweep = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refuse_constant)
        except RecursionError:
            raise forms.ValidationError("the sweep is nested too deeply; give each axis a flat list") from None
        except ValueError as error:
            raise forms.ValidationError(f"the sweep is not JSON: {error}; write it like {SWEEP_EXAMPLE}") from error
        if _depth(sweep) > _DEEPEST:
            raise forms.ValidationError("the sweep is nested too deeply; give each axis a flat list")
        return sweep


def form_field(name: str, schema: Mapping[str, Any]) -> forms.Field:
    """Make the form field for one field of a section from its JSON schema."""
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
    if kind.get("type") == "boolean":
        return forms.BooleanField(**(common | {"required": False}))
    if kind.get("type") == "string":
        return forms.CharField(empty_value=cast(str, None) if is_optional else "", **common)
    # An empty list is a value like another: there is nothing to type for it.
    empty = schema.get("default") if not is_optional else None
    return TreeField(
        empty,
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", "spellcheck": "false"}),
        **(common | {"required": not is_optional and empty != []}),
    )


def _choice_field(name: str, values: list[Any], is_optional: bool, common: dict[str, Any]) -> forms.Field:
    by_text = {str(value): value for value in values}
    remedy = f"%(value)s cannot be {name}; choose {', '.join(by_text)}"
    return forms.TypedChoiceField(
        choices=([("", "")] if is_optional else []) + [(text, text) for text in by_text],
        coerce=lambda text: by_text[str(text)],
        empty_value=None,
        **(common | {"error_messages": common["error_messages"] | {"invalid_choice": remedy}}),
    )


def _required_message(name: str, schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return f"{name} is empty; give it a value" + ("" if default is None else f", for example {default}")


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    axes = [axis for axis, _ in pairs]
    repeated = sorted({axis for axis in axes if axes.count(axis) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} stands there twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _depth(value: Any) -> int:
    """Levels of nesting, counted without recursion."""
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
