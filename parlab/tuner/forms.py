"""The form that starts a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.forms.models import ModelChoiceIteratorValue
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from parlab.lab.models import Config
from parlab.whole_numbers import whole_number

from .models import Study
from .services import LEAST_STEPS, why_not_tuned

SHOWN = 20
"""Configurations that a choice offers at once; a search finds the others."""
_MAX_WORDS = 8


class PlainSelect(forms.Select):
    """A select without a template for each option."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        shown = self.get_context(name, value, attrs)["widget"]
        options = (option for _, group, _ in shown["optgroups"] for option in group)
        rows = ((option["value"], flatatt(option["attrs"]), option["label"]) for option in options)
        lines = format_html_join("\n", '<option value="{}"{}>{}</option>', rows)
        return format_html('<select name="{}"{}>{}</select>', shown["name"], flatatt(shown["attrs"]), lines)


class TunableSelect(PlainSelect):
    """Choice of a configuration; those that cannot be tuned are disabled, with the reason."""

    def create_option(self, name: str, value: Any, label: int | str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        option: dict[str, Any] = super().create_option(name, value, label, *args, **kwargs)
        if value and (reason := why_not_tuned(value.instance)):
            option["label"] = f"{label}: {reason}"
            option["attrs"]["disabled"] = True
        return option


class ConfigChoice(forms.ModelChoiceField):  # type: ignore[type-arg]  # no generic at run time
    """A configuration, found by the words of its experiment, its version (v3) or its engine."""

    is_searched = True

    def offer(self, text: str, chosen: Any) -> None:
        """Offer the newest configurations that a text names, and the chosen one; every other one stays valid."""
        every = self.queryset
        assert every is not None
        rows = list(found(every, text)[:SHOWN])
        pk = chosen.pk if isinstance(chosen, Config) else whole_number(str(chosen or ""))
        if pk is not None and pk not in {row.pk for row in rows}:
            rows = [*every.filter(pk=pk), *rows]
        offered = [(ModelChoiceIteratorValue(row.pk, row), self.label_from_instance(row)) for row in rows]
        self.choices = [("", self.empty_label or ""), *offered]

    def label_from_instance(self, config: Any) -> str:
        axes = " \N{MULTIPLICATION SIGN} ".join(
            f"{len(values)} {axis.partition(',')[0].rpartition('.')[2]}" for axis, values in config.sweep.items()
        )
        return f"{config.experiment.name}, version {config.version}" + (f" ({axes})" if axes else "")


def found(configs: QuerySet[Config], text: str) -> QuerySet[Config]:
    """Return the configurations that every word of a text fits."""
    for word in text.replace("\0", "").split()[:_MAX_WORDS]:
        fits = Q(experiment__name__icontains=word) | Q(experiment__slug__icontains=word)
        fits |= Q(data__parallel__engine__icontains=word)
        if (version := whole_number(word.lower().removeprefix("v"), digits=9)) is not None:
            fits |= Q(version=version)
        configs = configs.filter(fits)
    return configs


class StudyForm(forms.Form):
    """Space, strategy and objective of a study, and the trials it is compared with."""

    config = ConfigChoice(
        Config.objects.none(),
        widget=TunableSelect,
        label="Configuration",
        empty_label="Choose one with a sweep",
        help_text=f"Its sweep is the search space. Each run needs at least {LEAST_STEPS} timed steps.",
    )
    strategy = forms.ChoiceField(
        choices=Study.Strategy.choices,
        initial=Study.Strategy.PLANNED,
        help_text="Planned launches the setting with the best prediction, corrected after each run; use the others for"
        " comparison. DeepSpeed's own autotuner runs on the node, for engine zero only.",
    )
    objective = forms.ChoiceField(
        choices=Study.Objective.choices, initial=Study.Objective.THROUGHPUT, help_text="Measured end to end."
    )
    max_launches = forms.IntegerField(
        label="Maximum launches", min_value=1, max_value=2000, initial=20, help_text="Number of runs of the search."
    )
    hand_tuned = forms.BooleanField(
        label="Compare with manual tuning",
        required=False,
        initial=True,
        help_text="Increases the micro batch, with all other axes at their first value, until it runs out of memory.",
    )
    baseline = ConfigChoice(
        Config.objects.none(),
        widget=PlainSelect,
        label="Baseline",
        required=False,
        empty_label="None",
        help_text="Another version of the same experiment, like the Hugging Face Trainer.",
    )

    def __init__(
        self, data: Any = None, *, initial: dict[str, Any] | None = None, searched: Mapping[str, str] | None = None
    ) -> None:
        """`searched` has the text by which a configuration is looked for, by the name of its field."""
        super().__init__(data, initial=initial, label_suffix="")
        every = Config.objects.select_related("experiment").order_by("-created_at")
        config, baseline = self.fields["config"], self.fields["baseline"]
        assert isinstance(config, forms.ModelChoiceField)
        assert isinstance(baseline, forms.ModelChoiceField)
        config.queryset = every.exclude(sweep={})
        baseline.queryset = every
        for name, field in self.fields.items():
            if isinstance(field, ConfigChoice):
                field.offer((searched or {}).get(name, ""), self[name].value())
