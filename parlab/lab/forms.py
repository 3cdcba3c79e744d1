"""The form of a configuration, made from the schema of RunConfig: a new field there is a new field here."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from django import forms

from parlab.charts.format import field_title, field_value
from parlab.lab.models import Config
from runners.config import ConfigError, Problem, complete, sections

from .config_layout import TITLES, label_of, section_names, unit_of, unused_fields
from .form_fields import SweepField, TreeField, form_field
from .services import config_check

SEWN = "__"
"""Between section and field in the name of a form field."""


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


def typed_values(data: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Name the values of a configuration as the fields of its form."""
    values = {f"{section}{SEWN}{name}": value for section, fields in data.items() for name, value in fields.items()}
    return values | {"sweep": sweep}


def form_values(data: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Give every field of the form the text that it shows for a configuration; the rest are defaults."""
    form = ConfigForm(initial=typed_values(data, sweep))
    values = {name: form.fields[name].prepare_value(form[name].value()) for name in form.fields}
    return {name: value for name, value in values.items() if SEWN in name or name == "sweep"}


def fieldsets() -> list[tuple[str | None, dict[str, Any]]]:
    """The form's fields in sections, as the admin wants them."""
    groups: list[tuple[str | None, dict[str, Any]]] = [(None, {"fields": ["experiment", "note", "seen_digest"]})]
    for (name, section), properties in zip(sections().items(), _schema().values(), strict=True):
        if properties:
            fields = [f"{name}{SEWN}{field}" for field in properties]
            groups.append((name, {"fields": fields, "description": section.__doc__}))
    groups.append(("sweep", {"fields": ["sweep"]}))
    return groups


@cache
def _schema() -> dict[str, dict[str, Any]]:
    """Section -> field -> its JSON schema."""
    return {name: section.model_json_schema().get("properties", {}) for name, section in sections().items()}
