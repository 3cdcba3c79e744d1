from django.contrib import admin

from parlab.lab.models import Device


@admin.register(Device)
class DeviceAdmin(admin.ModelAdmin[Device]):
    """The catalogue of GPUs and processors that the plan page offers."""

    list_display = (
        "name",
        "memory_gib",
        "memory_bandwidth_gb_s",
        "matmul_ceiling_tflops",
        "link_gb_s",
        "node_gbit_s",
        "price_per_hour",
        "source",
    )
    search_fields = ("name", "source")
