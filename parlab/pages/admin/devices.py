from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.core.validators import MinValueValidator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from parlab.lab.models import Device
from parlab.lab.models.device import PRECISIONS


class PeaksWidget(forms.MultiWidget):
    """A number for each precision, under its name."""

    def __init__(self) -> None:
        super().__init__({name: forms.NumberInput(attrs={"step": "any", "min": "0"}) for name in PRECISIONS})

    def decompress(self, value: Any) -> list[Any]:
        return [value.get(name) if isinstance(value, Mapping) else None for name in PRECISIONS]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        values = value if isinstance(value, list) else self.decompress(value)
        inputs = []
        for place, (precision, widget, one) in enumerate(zip(PRECISIONS, self.widgets, values, strict=True)):
            known = {"id": f"id_{name}_{place}"}
            shown = widget.render(f"{name}_{precision}", one, known, renderer)
            inputs.append((known["id"], precision, shown))
        return format_html('<div class="peaks">{}</div>', format_html_join("", '<label for="{}">{} {}</label>', inputs))


class PeaksField(forms.MultiValueField):
    """Peaks in TFLOP/s as `Device.peak_tflops` holds them; a precision that the device lacks is left empty."""

    def __init__(self, **kwargs: Any) -> None:
        least = MinValueValidator(0.001, "A peak is above 0; leave the field empty where there is none.")
        fields = [forms.FloatField(required=False, validators=[least]) for _ in PRECISIONS]
        super().__init__(fields, require_all_fields=False, widget=PeaksWidget(), **kwargs)

    def compress(self, data_list: Sequence[float | None]) -> dict[str, float]:
        given = zip(PRECISIONS, data_list or [None] * len(PRECISIONS), strict=True)
        return {precision: peak for precision, peak in given if peak is not None}


class DeviceForm(forms.ModelForm[Device]):
    peak_tflops = PeaksField(
        label="Peak (TFLOP/s)", help_text="Without sparsity, as the data sheet has it; empty where there is none."
    )

    class Meta:
        model = Device
        fields = "__all__"  # noqa: DJ007  # a catalogue: all of it is for people


@admin.register(Device)
class DeviceAdmin(admin.ModelAdmin[Device]):
    """The catalogue of GPUs and processors that the plan page offers."""

    form = DeviceForm
    list_display = (
        "name",
        "memory_gib",
        "memory_bandwidth_gb_s",
        "peaks",
        "matmul_ceiling_tflops",
        "link_gb_s",
        "node_gbit_s",
        "price_per_hour",
        "source",
    )
    search_fields = ("name", "source")

    @admin.display(description="peak (TFLOP/s)")
    def peaks(self, device: Device) -> SafeString:
        found = [(name, f"{device.peak_tflops[name]:g}") for name in PRECISIONS if name in device.peak_tflops]
        return format_html_join(SafeString("<br>"), "{} {}", found)
