"""The form of a configuration, made from the schema of RunConfig: a new field there is a new field here."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from django import forms

from parlab.charts.format import field_title, field_value
from parlab.lab.models import Config
from runners.config import ConfigError, Problem, complete, sections

from .config_layout import TITLES, label_of, section_names, unit_of, unused_fields
from .services import config_check

SEWN = "__"
"""Between section and field in the name of a form field."""
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


class FieldRow(NamedTuple):
    """One field of the form with what stands beside it."""

    bound: forms.BoundField
    path: str
    """Dotted name, as sweeps have it."""
    unit: str
    default: str
    is_wide: bool
    """A list or mapping, which takes the whole row."""


class FieldSection(NamedTuple):
    """One section: fields that the engine uses, and those that change nothing."""

    name: str
    title: str
    doc: str
    used: list[FieldRow]
    unused: list[FieldRow]

    @property
    def is_open(self) -> bool:
        """Whether it is worth looking at: it has a say, or an error."""
        return bool(self.used) or any(row.bound.errors for row in self.unused)

    @property
    def has_hidden_errors(self) -> bool:
        return any(row.bound.errors for row in self.unused)


class ConfigForm(forms.ModelForm[Config]):
    """A Config with a form field for every field of RunConfig, checked by RunConfig itself."""

    sweep = SweepField()
    seen_digest = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)

    class Meta:
        model = Config
        fields = ("experiment", "note")
        widgets = {"note": forms.TextInput(attrs={"class": "vTextField"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        stored: Mapping[str, Any] = self.instance.data if self.instance.pk else {}
        for section, properties in _schema().items():
            for name, schema in properties.items():
                field = form_field(name, schema)
                field.label = label_of(f"{section}.{name}")
                field.widget.attrs["aria-describedby"] = f"hint-{section}{SEWN}{name} error-{section}{SEWN}{name}"
                field.initial = stored.get(section, {}).get(name, schema.get("default"))
                self.fields[f"{section}{SEWN}{name}"] = field
        if self.instance.pk:
            self.fields["experiment"].disabled = True
            self.initial.update(sweep=self.instance.sweep, seen_digest=self.instance.digest)

    @property
    def shown_data(self) -> dict[str, dict[str, Any]]:
        """What the fields show, by sections: what was typed, or what they begin with."""
        found: dict[str, dict[str, Any]] = {section: {} for section in sections()}
        for name in self.fields:
            section, sewn, field = name.partition(SEWN)
            if sewn:
                found[section][field] = self[name].value()
        return found

    @property
    def field_sections(self) -> list[FieldSection]:
        """Lay the fields out by sections, those apart that the chosen engine does not use."""
        unused, schemas, known = unused_fields(self.shown_data), _schema(), sections()
        laid = []
        for section in section_names():
            rows = [self._row(section, name, schema) for name, schema in schemas[section].items()]
            laid.append(
                FieldSection(
                    section,
                    TITLES.get(section, field_title(section)),
                    " ".join((known[section].__doc__ or "").split()),
                    [row for row in rows if row.path not in unused],
                    [row for row in rows if row.path in unused],
                )
            )
        return [section for section in laid if section.used or section.unused]

    def _row(self, section: str, name: str, schema: Mapping[str, Any]) -> FieldRow:
        bound = self[f"{section}{SEWN}{name}"]
        default = schema.get("default")
        return FieldRow(
            bound,
            f"{section}.{name}",
            unit_of(f"{section}.{name}"),
            "empty" if default in (None, []) else field_value(default),
            isinstance(bound.field, TreeField),
        )

    @property
    def data_of_config(self) -> dict[str, Any]:
        """The RunConfig as typed, by sections, without fields that could not be read."""
        data: dict[str, dict[str, Any]] = {section: {} for section in sections()}
        for key, value in self.cleaned_data.items():
            section, sewn, name = key.partition(SEWN)
            if sewn:
                data[section][name] = value
        return data

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        data = self.data_of_config
        try:
            # How fields fit together is only worth saying once each of them makes sense.
            if self.errors:
                complete(data)
            else:
                config_check(data=data, sweep=cleaned["sweep"])
        except ConfigError as error:
            for problem in error.problems:
                self._show(problem)
        return cleaned

    def _show(self, problem: Problem) -> None:
        name = problem.field.replace(".", SEWN)
        if name in self.fields:
            self.add_error(name, problem.message)
        else:
            self.add_error(None, str(problem))


def fieldsets() -> list[tuple[str | None, dict[str, Any]]]:
    """The form's fields in sections, as the admin wants them."""
    groups: list[tuple[str | None, dict[str, Any]]] = [(None, {"fields": ["experiment", "note", "seen_digest"]})]
    for (name, section), properties in zip(sections().items(), _schema().values(), strict=True):
        if properties:
            fields = [f"{name}{SEWN}{field}" for field in properties]
            groups.append((name, {"fields": fields, "description": section.__doc__}))
    groups.append(("sweep", {"fields": ["sweep"]}))
    return groups


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


def _schema() -> dict[str, dict[str, Any]]:
    """Section -> field -> its JSON schema."""
    return {name: section.model_json_schema().get("properties", {}) for name, section in sections().items()}


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
