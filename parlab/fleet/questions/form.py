"""The base of all questions: form, model presets, and the mapping of configuration problems to form fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django import forms

from parlab.fleet.capacity import gpu_count
from parlab.lab.models import Node
from parlab.lab.services.configs import config_check
from runners.config import ConfigError, Problem
from runners.config.devices import DEVICES

MAX_COUNTS = 12
"""Maximum number of rank counts in a question."""


class Preset(NamedTuple):
    """A model to start from."""

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
    """Comma-separated integers: `1, 2, 4`."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**6 for part in parts):
            raise forms.ValidationError(f"{text!r} is not a list of numbers; use a list like 1, 2, 4")
        if len(set(parts)) > MAX_COUNTS:
            raise forms.ValidationError(f"the list has {len(set(parts))} numbers; use at most {MAX_COUNTS}")
        return sorted({int(part) for part in parts})

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def whole(label: str, help_text: str, default: int | None, **more: Any) -> forms.IntegerField:
    return forms.IntegerField(label=label, help_text=help_text, initial=default, min_value=1, max_value=2**40, **more)


def choice(label: str, help_text: str, *values: str) -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label, help_text=help_text, choices=[(value, value) for value in values], initial=values[0]
    )


class Question(forms.Form):
    """A question with the fields that all questions share: pool and device."""

    heading: ClassVar[str]
    """The question, as shown in the list of questions."""
    description: ClassVar[str]
    """What is run, and what the answer contains."""
    model_fields: ClassVar[tuple[str, ...]] = ()
    """Fields filled by a preset."""
    places: ClassVar[Mapping[str, str]] = {}
    """RunConfig field -> form field, to show configuration problems beside the right field."""

    pool = forms.ChoiceField(label="Node pool", help_text="Nodes on which the runs are executed.")
    device = choice("Device", "auto uses GPUs if the node has enough of them.", *DEVICES)

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
            field.error_messages["required"] = f"{field.label} is required; enter a value"

    @property
    def main(self) -> list[forms.BoundField]:
        return [self[name] for name in self.field_order or []]

    @property
    def further(self) -> list[forms.BoundField]:
        """The fields under More settings."""
        return [self[name] for name in self.fields if name not in (self.field_order or [])]

    @property
    def further_errors(self) -> bool:
        return self.is_bound and any(field.errors for field in self.further)

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        """Return the sections of a RunConfig."""
        raise NotImplementedError

    def sweep(self) -> dict[str, list[Any]]:
        return {}

    def title(self) -> str:
        """Return the name of the experiment."""
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
        names = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
        return {name: self.cleaned_data[name] for name in names if name in self.cleaned_data} | more

    def cluster(self) -> dict[str, Any]:
        return {"pool": self.cleaned_data["pool"], "device": self.cleaned_data["device"]}


class ModelQuestion(Question):
    """A question with model sizes, except the number of layers, and a memory limit per process."""

    hidden_size = whole("Hidden size", "Model dimension (d_model).", 256)
    num_attention_heads = whole("Attention heads", "Must divide the hidden size.", 4)
    sequence_length = whole("Sequence length", "Tokens per sequence.", 64)
    vocab_size = whole("Vocabulary", "Entries of the token embedding.", 1024)
    precision = choice("Precision", "Arithmetic of forward and backward passes.", "fp32", "bf16")
    memory_limit_mib = whole(
        "Memory limit (MiB)",
        "Memory that each process on a CPU may allocate, Python included. Leave empty for no limit. Not used on GPUs.",
        512,
        required=False,
    )

    def launcher(self) -> dict[str, Any]:
        """Limit memory on a CPU only: the address space that CUDA reserves would exceed the limit."""
        cleaned = self.cleaned_data
        device, nodes = DEVICES[cleaned["device"]], Node.objects.filter(pool=cleaned["pool"])
        on_gpus = device.needs_gpus or (device.may_use_gpus and any(gpu_count(node) for node in nodes))
        return {"memory_limit_mib": None if on_gpus else cleaned["memory_limit_mib"]}
