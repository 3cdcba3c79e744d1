"""What all questions to a cluster share: the form, the models to start from, how problems find their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django import forms

from parlab.fleet.capacity import gpu_count
from parlab.lab.models import Node
from parlab.lab.services import config_check
from runners.config import ConfigError, Problem
from runners.config.devices import DEVICES

MAX_COUNTS = 12
"""Different numbers of ranks that one question asks about."""


class Preset(NamedTuple):
    """A known model, to start from."""

    title: str
    values: dict[str, Any]


PRESETS = {
    "small": Preset(
        "Small enough for a CPU",
        {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 64, "vocab_size": 1024},
    ),
    "gpt3-small": Preset(
        "GPT-3 small (125 M)",
        {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "sequence_length": 2048, "vocab_size": 50304},
    ),
    "bert-345m": Preset(
        "BERT of 345 M",
        {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "sequence_length": 512, "vocab_size": 28996},
    ),
    "gpt3-175b": Preset(
        "GPT-3 (175 B)",
        {
            "num_layers": 96,
            "hidden_size": 12288,
            "num_attention_heads": 96,
            "sequence_length": 2048,
            "vocab_size": 50304,
        },
    ),
}


class CountsField(forms.CharField):
    """Whole numbers with commas between them: `1, 2, 4`."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**6 for part in parts):
            raise forms.ValidationError(f"{text!r} is no list of numbers; use one like 1, 2, 4")
        if len(set(parts)) > MAX_COUNTS:
            raise forms.ValidationError(f"these are {len(set(parts))} numbers; use at most {MAX_COUNTS}")
        return sorted({int(part) for part in parts})

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def whole(label: str, help_text: str, default: int | None, **more: Any) -> forms.IntegerField:
    """A whole number from 1 on."""
    return forms.IntegerField(label=label, help_text=help_text, initial=default, min_value=1, max_value=2**40, **more)


def choice(label: str, help_text: str, *values: str) -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label, help_text=help_text, choices=[(value, value) for value in values], initial=values[0]
    )


class Question(forms.Form):
    """What all questions ask for: where it runs."""

    heading: ClassVar[str]
    """The question in words, as the list of questions shows it."""
    description: ClassVar[str]
    """What runs, and what the answer will say."""
    model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that a preset fills in."""
    places: ClassVar[Mapping[str, str]] = {}
    """Field of a RunConfig -> field of this form, for problems of the one that belong to the other."""

    pool = forms.ChoiceField(label="Node pool", help_text="Nodes that may take the runs.")
    device = choice("Device", "auto takes GPUs where the node has enough of them.", *DEVICES)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        online = sorted(set(Node.objects.online().values_list("pool", flat=True)))
        pools = sorted(set(Node.objects.values_list("pool", flat=True)) | {"default"})
        pool = self.fields["pool"]
        assert isinstance(pool, forms.ChoiceField)
        pool.choices = [(name, f"{name} (no node online)" if name not in online else name) for name in pools]
        pool.initial = "default" if "default" in online or not online else online[0]
        for name, field in self.fields.items():
            field.widget.attrs["aria-describedby"] = f"hint-{name} error-{name}"
            field.error_messages["required"] = f"{field.label} is empty; give it a value"

    @property
    def main(self) -> list[forms.BoundField]:
        """Fields that people think of first."""
        return [self[name] for name in self.field_order or []]

    @property
    def further(self) -> list[forms.BoundField]:
        """Fields whose defaults do for most."""
        return [self[name] for name in self.fields if name not in (self.field_order or [])]

    @property
    def further_errors(self) -> bool:
        return self.is_bound and any(field.errors for field in self.further)

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        """Write the answers as the sections of a RunConfig."""
        raise NotImplementedError

    def sweep(self) -> dict[str, list[Any]]:
        return {}

    def title(self) -> str:
        """Name the experiment."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                config_check(data=self.data_of_config(), sweep=self.sweep())
            except ConfigError as error:
                for problem in error.problems:
                    self._show(problem)
        return cleaned

    def _show(self, problem: Problem) -> None:
        name = self.places.get(problem.field, problem.field.rpartition(".")[2])
        if name in self.fields:
            self.add_error(name, problem.message)
        else:
            self.add_error(None, str(problem))

    def model(self, **more: Any) -> dict[str, Any]:
        known = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
        return {name: self.cleaned_data[name] for name in known if name in self.cleaned_data} | more

    def cluster(self) -> dict[str, Any]:
        return {"pool": self.cleaned_data["pool"], "device": self.cleaned_data["device"]}


class ModelQuestion(Question):
    """The size of a model without its number of layers, and how much memory each process may take."""

    hidden_size = whole("Model width", "Width of the residual stream (d_model).", 256)
    num_attention_heads = whole("Attention heads", "Must divide the width.", 4)
    sequence_length = whole("Sequence length", "Tokens of a sequence.", 64)
    vocab_size = whole("Vocabulary", "Entries of the token embedding.", 1024)
    precision = choice("Precision", "Arithmetic of forward and backward passes.", "fp32", "bf16")
    memory_limit_mib = whole(
        "Memory limit (MiB)",
        "What each process on a CPU may allocate, Python included; empty for none. GPUs have limits of their own.",
        512,
        required=False,
    )

    def launcher(self) -> dict[str, Any]:
        """Limit processes on a CPU only: what CUDA itself takes of a process' memory would break the limit."""
        given = self.cleaned_data
        device, nodes = DEVICES[given["device"]], Node.objects.filter(pool=given["pool"])
        on_gpus = device.needs_gpus or (device.may_use_gpus and any(gpu_count(node) for node in nodes))
        return {"memory_limit_mib": None if on_gpus else given["memory_limit_mib"]}
