"""The form that starts a study."""

from __future__ import annotations

from typing import Any

from django import forms

from parlab.lab.models import Config

from .models import Study
from .services import LEAST_STEPS


class ConfigChoice(forms.ModelChoiceField):  # type: ignore[type-arg]  # no generic at run time
    def label_from_instance(self, config: Any) -> str:
        axes = " \N{MULTIPLICATION SIGN} ".join(
            f"{len(values)} {axis.partition(',')[0].rpartition('.')[2]}" for axis, values in config.sweep.items()
        )
        return f"{config.experiment.name}, version {config.version}" + (f" ({axes})" if axes else "")


class StudyForm(forms.Form):
    """What to search, how, and with what the result is compared."""

    config = ConfigChoice(
        Config.objects.none(),
        label="Configuration",
        empty_label="Choose one with a sweep",
        help_text=f"Its sweep is the space; its runs need {LEAST_STEPS} timed steps or more.",
    )
    strategy = forms.ChoiceField(
        choices=Study.Strategy.choices,
        initial=Study.Strategy.PLANNED,
        help_text="Planned launches where the planner, corrected by each run, expects most; the others are to compare."
        " DeepSpeed's own autotuner runs on the node, for engine zero.",
    )
    objective = forms.ChoiceField(
        choices=Study.Objective.choices, initial=Study.Objective.THROUGHPUT, help_text="Measured from end to end."
    )
    max_launches = forms.IntegerField(
        label="Launches at most", min_value=1, max_value=2000, initial=20, help_text="Runs of the search."
    )
    hand_tuned = forms.BooleanField(
        label="Compare with tuning by hand",
        required=False,
        initial=True,
        help_text="Grows the micro batch with all else at its first value, until memory ends.",
    )
    baseline = ConfigChoice(
        Config.objects.none(),
        label="Baseline",
        required=False,
        empty_label="None",
        help_text="Another version of the same experiment, like the Hugging Face Trainer.",
    )

    def __init__(self, data: Any = None, *, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial, label_suffix="")
        every = Config.objects.select_related("experiment").order_by("-created_at")
        config, baseline = self.fields["config"], self.fields["baseline"]
        assert isinstance(config, forms.ModelChoiceField)
        assert isinstance(baseline, forms.ModelChoiceField)
        config.queryset = every.exclude(sweep={})
        baseline.queryset = every
