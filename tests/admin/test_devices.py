"""The device catalogue: a peak for each precision, and errors for invalid values."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Device

pytestmark = pytest.mark.django_db


def form(**changes: str) -> dict[str, str]:
    sizes = {"name": "X1", "memory_gib": "80", "memory_bandwidth_gb_s": "2000", "peak_tflops_bf16": "312"}
    return {**sizes, "prices-TOTAL_FORMS": "0", "prices-INITIAL_FORMS": "0", **changes}


def test_device_peaks_are_entered_and_edited_by_precision(admin: Client) -> None:
    admin.post(reverse("admin:lab_device_add"), form(peak_tflops_fp32="19.5"))
    device = Device.objects.get(name="X1")
    assert device.peak_tflops == {"fp32": 19.5, "bf16": 312.0}
    url = reverse("admin:lab_device_change", args=[device.pk])
    page = admin.get(url).content.decode()
    assert 'name="peak_tflops_bf16" value="312.0"' in page
    admin.post(url, form())
    device.refresh_from_db()
    assert device.peak_tflops == {"bf16": 312.0}
    assert "bf16 312" in admin.get(reverse("admin:lab_device_changelist"), {"q": "X1"}).content.decode()


def test_a_device_has_a_price_for_each_offer(admin: Client) -> None:
    price = {
        "prices-TOTAL_FORMS": "1",
        "prices-0-offer": "spot",
        "prices-0-per_hour": "1.25",
        "prices-0-currency": "EUR",
    }
    more = {"prices-0-seen_on": "2026-11-01", "prices-0-lost_percent": "12", "prices-0-source": "offer of the site"}
    admin.post(reverse("admin:lab_device_add"), form(**price, **more))
    stored = Device.objects.get(name="X1").prices.get()
    assert (stored.offer, stored.per_hour, stored.currency, stored.lost_percent) == ("spot", 1.25, "EUR", 12)
    assert "spot EUR 1.25" in admin.get(reverse("admin:lab_device_changelist"), {"q": "X1"}).content.decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peak_tflops_bf16": ""}, "This field is required"),
        ({"peak_tflops_bf16": "-1"}, "Enter a peak above 0"),
        ({"peak_tflops_bf16": "fast"}, "Enter a number"),
        ({"peak_tflops_bf16": "1e300"}, "use TFLOP/s above 0"),
        ({"peak_tflops_bf16": "nan"}, "Enter a number"),
        ({"memory_gib": "-1"}, "greater than or equal to 0.001"),
        ({"name": "A100 SXM4 80 GB"}, "already exists"),
        ({"prices-TOTAL_FORMS": "1", "prices-0-per_hour": "2", "prices-0-currency": "euro"}, "at most 3 characters"),
        ({"prices-TOTAL_FORMS": "1", "prices-0-per_hour": "2", "prices-0-currency": "eur"}, "Use three capitals"),
    ],
)
def test_invalid_device_values_are_reported_at_their_field(
    admin: Client, catalogue: None, changes: dict[str, str], message: str
) -> None:
    page = admin.post(reverse("admin:lab_device_add"), form(**changes))
    assert page.status_code == 200
    assert message in page.content.decode()
    assert not Device.objects.filter(name="X1").exists()
