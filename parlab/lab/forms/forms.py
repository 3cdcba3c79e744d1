"""The form of a configuration, created from the schema of RunConfig, so that new fields appear automatically."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from django import forms
from django.http import QueryDict

from parlab.charts.fields import label_of, unit_of
from parlab.charts.format import field_title, field_value
from parlab.lab.models import Config, Experiment, Node
from parlab.lab.services.configs import Superseded, config_check
from runners.config import ConfigError, Problem, complete, sections

from .config_layout import TITLES, section_names, unused_fields
from .form_fields import SweepField, TreeField, form_field

SEP = "__"
"""Between section and field in the name of a form field."""
AS_NEXT = "next:"
"""Before a digest that was seen: the form adds a version, whatever the last one is."""


class FieldRow(NamedTuple):
    """One field of the form with its name, unit and default."""

    bound: forms.BoundField
    path: str
    """Dotted name, as used in sweeps."""
    unit: str
    default: str
    is_wide: bool
    """Whether the field takes a whole row: a list or a mapping."""


class FieldSection(NamedTuple):
    """One section: fields that the engine uses, and fields without effect."""

    name: str
    title: str
    doc: str
    used: list[FieldRow]
    unused: list[FieldRow]

    @property
    def is_open(self) -> bool:
        """Whether the section is expanded: it has fields in use, or an error."""
        return bool(self.used) or any(row.bound.errors for row in self.unused)

    @property
    def has_hidden_errors(self) -> bool:
        return any(row.bound.errors for row in self.unused)


class ConfigForm(forms.ModelForm[Config]):
    """A Config with a form field for every field of RunConfig, validated by RunConfig."""

    sweep = SweepField()
    seen_digest = forms.CharField(required=False, max_length=80, widget=forms.HiddenInput)

    class Meta:
        model = Config
        fields = ("experiment", "note")
        widgets = {"note": forms.TextInput(attrs={"class": "vTextField"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        # The class was made without a person who asks: its own choices are all experiments.
        self.fields["experiment"].queryset = Experiment.objects.all()  # type: ignore[attr-defined]
        stored: Mapping[str, Any] = self.instance.data if self.instance.pk else {}
        for section, properties in _schema().items():
            for name, schema in properties.items():
                field = form_field(name, schema)
                field.label = label_of(f"{section}.{name}")
                field.widget.attrs["aria-describedby"] = f"hint-{section}{SEP}{name} error-{section}{SEP}{name}"
                field.initial = stored.get(section, {}).get(name, schema.get("default"))
                self.fields[f"{section}{SEP}{name}"] = field
        if self.instance.pk:
            self.fields["experiment"].disabled = True
            self.initial.update(sweep=self.instance.sweep, seen_digest=self.latest.digest)

    @property
    def latest(self) -> Config:
        """The newest version of the experiment of a stored version."""
        return self.instance.experiment.configs.select_related("created_by").latest("version")

    @property
    def current_data(self) -> dict[str, dict[str, Any]]:
        """The values of the fields by section: as typed, or initial."""
        data: dict[str, dict[str, Any]] = {section: {} for section in sections()}
        for name in self.fields:
            section, separator, field = name.partition(SEP)
            if separator:
                data[section][field] = self[name].value()
        return data

    @property
    def unused(self) -> set[str]:
        """The dotted fields without effect for the current values and the registered nodes."""
        return unused_fields(self.current_data, queue_pools=Node.objects.queue_pools())

    @property
    def field_sections(self) -> list[FieldSection]:
        """The fields by section; those without effect for the selected engine are separate."""
        unused, schemas, models = self.unused, _schema(), sections()
        layout = []
        for section in section_names():
            rows = [self._field_row(section, name, schema) for name, schema in schemas[section].items()]
            layout.append(
                FieldSection(
                    section,
                    TITLES.get(section, field_title(section)),
                    " ".join((models[section].__doc__ or "").split()),
                    [row for row in rows if row.path not in unused],
                    [row for row in rows if row.path in unused],
                )
            )
        return [section for section in layout if section.used or section.unused]

    def _field_row(self, section: str, name: str, schema: Mapping[str, Any]) -> FieldRow:
        bound = self[f"{section}{SEP}{name}"]
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
        """The RunConfig as typed, by section, without invalid fields."""
        data: dict[str, dict[str, Any]] = {section: {} for section in sections()}
        for key, value in self.cleaned_data.items():
            section, separator, name = key.partition(SEP)
            if separator:
                data[section][name] = value
        return data

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.instance.pk:
            self._check_seen(cleaned)
        data = self.data_of_config
        try:
            # Check how fields fit together only if each of them is valid.
            if self.errors:
                complete(data)
            else:
                config_check(data=data, sweep=cleaned["sweep"])
        except ConfigError as error:
            for problem in error.problems:
                self._add_problem(problem)
        return cleaned

    def _check_seen(self, cleaned: dict[str, Any]) -> None:
        """Refuse a save that is based on an outdated version; repeated, it becomes the next version."""
        latest, seen = self.latest, cleaned.get("seen_digest", "")
        if seen.removeprefix(AS_NEXT) != latest.digest:
            self.add_error(None, f"{Superseded(latest)}. Your values are kept below; saving them again adds a version.")
            data = cast(QueryDict, self.data).copy()
            data[self.add_prefix("seen_digest")] = f"{AS_NEXT}{latest.digest}"
            self.data = data

    def _add_problem(self, problem: Problem) -> None:
        name = problem.field.replace(".", SEP)
        if name in self.fields:
            self.add_error(name, problem.message)
        else:
            self.add_error(None, str(problem))


def typed_values(data: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration by form field name."""
    values = {f"{section}{SEP}{name}": value for section, fields in data.items() for name, value in fields.items()}
    return values | {"sweep": sweep}


def form_values(data: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the displayed value of every form field for a configuration, defaults included."""
    form = ConfigForm(initial=typed_values(data, sweep))
    values = {name: form.fields[name].prepare_value(form[name].value()) for name in form.fields}
    return {name: value for name, value in values.items() if SEP in name or name == "sweep"}


@cache
def _schema() -> dict[str, dict[str, Any]]:
    """Return JSON schemas: section -> field -> schema."""
    return {name: section.model_json_schema().get("properties", {}) for name, section in sections().items()}
