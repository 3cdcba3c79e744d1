"""Bring the devices that the planner has gained to installations that have the first catalogue."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def bring_devices(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # Imported late, so that a later move of the planner's modules affects only this migration.
    from parlab.planner.job.hardware import devices

    catalogue = apps.get_model("lab", "Device")
    for gpu in devices():
        catalogue.objects.get_or_create(
            name=gpu.name,
            defaults={
                "memory_gib": gpu.memory_bytes / 2**30,
                "memory_bandwidth_gb_s": gpu.memory_bandwidth / 1e9,
                "peak_tflops": {name: round(flops / 1e12, 6) for name, flops in gpu.peak_flops.items()},
                "matmul_ceiling_tflops": gpu.matmul_ceiling_flops and gpu.matmul_ceiling_flops / 1e12,
                "source": gpu.source,
            },
        )
    # FP4 peaks of devices that were in the catalogue before.
    for gpu in devices():
        if "fp4" in gpu.peak_flops:
            device = catalogue.objects.get(name=gpu.name)
            if "fp4" not in device.peak_tflops:
                device.peak_tflops = {"fp4": round(gpu.peak_flops["fp4"] / 1e12, 6), **device.peak_tflops}
                device.save(update_fields=["peak_tflops"])


class Migration(migrations.Migration):
    dependencies = [("lab", "0012_source_versions")]

    operations = [migrations.RunPython(bring_devices, migrations.RunPython.noop)]
