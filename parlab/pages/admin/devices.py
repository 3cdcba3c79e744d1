"""The admin of the device catalogue."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.core.validators import MinValueValidator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from parlab.lab.models import Device, DevicePrice
from parlab.lab.models.device import PRECISIONS


class PeaksWidget(forms.MultiWidget):
    """One labelled number input for each precision."""

    def __init__(self) -> None:
        super().__init__({name: forms.NumberInput(attrs={"step": "any", "min": "0"}) for name in PRECISIONS})

    def decompress(self, value: Any) -> list[Any]:
        return [value.get(name) if isinstance(value, Mapping) else None for name in PRECISIONS]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        values = value if isinstance(value, list) else self.decompress(value)
        inputs = []
        for index, (precision, widget, peak) in enumerate(zip(PRECISIONS, self.widgets, values, strict=True)):
            element_id = f"id_{name}_{index}"
            html = widget.render(f"{name}_{precision}", peak, {"id": element_id}, renderer)
            inputs.append((element_id, precision, html))
        return format_html('<div class="peaks">{}</div>', format_html_join("", '<label for="{}">{} {}</label>', inputs))


class PeaksField(forms.MultiValueField):
    """Peaks in TFLOP/s by precision, as in `Device.peak_tflops`; unsupported precisions are empty."""

    def __init__(self, **kwargs: Any) -> None:
        least = MinValueValidator(0.001, "Enter a peak above 0, or leave the field empty.")
        fields = [forms.FloatField(required=False, validators=[least]) for _ in PRECISIONS]
        super().__init__(fields, require_all_fields=False, widget=PeaksWidget(), **kwargs)

    def compress(self, data_list: Sequence[float | None]) -> dict[str, float]:
        peaks = zip(PRECISIONS, data_list or [None] * len(PRECISIONS), strict=True)
        return {precision: peak for precision, peak in peaks if peak is not None}


class DeviceForm(forms.ModelForm[Device]):
    peak_tflops = PeaksField(
        label="Peak (TFLOP/s)", help_text="From the data sheet, without sparsity. Leave unsupported precisions empty."
    )

    class Meta:
        model = Device
        fields = "__all__"  # noqa: DJ007  # all fields of the catalogue are editable


class PriceInline(admin.TabularInline[DevicePrice, Device]):
    """Prices of a device by kind of contract."""

    model = DevicePrice
    extra = 0


@admin.register(Device)
class DeviceAdmin(admin.ModelAdmin[Device]):
    """The catalogue of GPUs and CPUs on the plan page."""

    form = DeviceForm
    list_display = (
        "name",
        "memory_gib",
        "memory_bandwidth_gb_s",
        "peaks",
        "matmul_ceiling_tflops",
        "link_gb_s",
        "node_gbit_s",
        "offers",
        "source",
    )
    search_fields = ("name", "source")
    inlines = (PriceInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Device]:
        return super().get_queryset(request).prefetch_related("prices")

    @admin.display(description="prices of an hour")
    def offers(self, device: Device) -> SafeString:
        prices = [(price.get_offer_display(), f"{price.currency} {price.per_hour:g}") for price in device.prices.all()]
        return format_html_join(SafeString("<br>"), "{} {}", prices)

    @admin.display(description="peak (TFLOP/s)")
    def peaks(self, device: Device) -> SafeString:
        peaks = [(name, f"{device.peak_tflops[name]:g}") for name in PRECISIONS if name in device.peak_tflops]
        return format_html_join(SafeString("<br>"), "{} {}", peaks)
