from datetime import date
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from parlab.planner.job.hardware import Gpu

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_LARGEST = 1e21


class Device(models.Model):
    """A GPU or CPU that the planner can use; parlab includes a catalogue, which users can edit and extend."""

    name = models.CharField(max_length=80, unique=True, help_text="A name that starts with CPU denotes a CPU.")
    memory_gib = models.FloatField("memory (GiB)", validators=[MinValueValidator(0.001)])
    memory_bandwidth_gb_s = models.FloatField("memory bandwidth (GB/s)", validators=[MinValueValidator(0.001)])
    peak_tflops: "models.JSONField[dict[str, float]]" = models.JSONField(
        "peak (TFLOP/s)",
        help_text='Without sparsity, by precision (fp32, tf32, fp16, bf16, fp8): {"fp32": 19.5, "bf16": 312}.',
    )
    matmul_ceiling_tflops = models.FloatField(
        "matmul ceiling (TFLOP/s)",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001)],
        help_text="Highest measured rate of large 16-bit matrix products. Leave empty if not measured.",
    )
    link_gb_s = models.FloatField(
        "link inside a node (GB/s)",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001)],
        help_text="One direction, per device. Leave empty for the usual bandwidth of this kind of device.",
    )
    node_gbit_s = models.FloatField(
        "network of a node (Gbit/s)",
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001)],
        help_text="Sum over all network cards of a node. Leave empty for the usual bandwidth of such nodes.",
    )
    source = models.CharField(max_length=200, blank=True, help_text="Origin of these numbers, such as a data sheet.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        peaks: Any = self.peak_tflops
        if not isinstance(peaks, dict) or not peaks:
            raise ValidationError({"peak_tflops": 'Give at least one peak, like {"bf16": 312}.'})
        for precision, value in peaks.items():
            if precision not in PRECISIONS:
                raise ValidationError({"peak_tflops": f"Unknown precision {precision}; use {', '.join(PRECISIONS)}."})
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value * 1e12 < _LARGEST:
                raise ValidationError({"peak_tflops": f"Invalid peak {value!r} for {precision}; use TFLOP/s above 0."})

    @property
    def gpu(self) -> Gpu:
        """The device as the planner takes it."""
        return Gpu(
            self.name,
            int(self.memory_gib * 2**30),
            {precision: tera * 1e12 for precision, tera in self.peak_tflops.items()},
            self.memory_bandwidth_gb_s * 1e9,
            self.source or "the catalogue of this installation",
            self.matmul_ceiling_tflops * 1e12 if self.matmul_ceiling_tflops else None,
            self.link_gb_s * 1e9 if self.link_gb_s else None,
            self.node_gbit_s,
        )


class DevicePrice(models.Model):
    """What an hour of one device costs in one kind of contract; the plan page compares them."""

    class Offer(models.TextChoices):
        ON_DEMAND = "on-demand", "on demand"
        RESERVED = "reserved", "reserved"
        SPOT = "spot", "spot"

    device = models.ForeignKey(Device, models.CASCADE, related_name="prices")
    offer = models.CharField(max_length=9, choices=Offer, default=Offer.ON_DEMAND)
    per_hour = models.FloatField("price of an hour", validators=[MinValueValidator(0.0)], help_text="Of one device.")
    currency = models.CharField(
        max_length=3, default="USD", validators=[RegexValidator("^[A-Z]{3}$", "Use three capitals, such as USD.")]
    )
    seen_on = models.DateField("date of the price", default=date.today)
    source = models.CharField(max_length=200, blank=True, help_text="Where the price was read, or the contract.")
    lost_percent = models.FloatField(
        "time lost (%)",
        default=0.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(90.0)],
        help_text="Share of the time that preemptions and repeated steps cost; for spot devices.",
    )

    class Meta:
        ordering = ["device", "offer"]
        constraints = [models.UniqueConstraint(fields=["device", "offer"], name="device_price_once")]

    def __str__(self) -> str:
        return f"{self.device} {self.get_offer_display()}, {self.currency} {self.per_hour:g} an hour"
