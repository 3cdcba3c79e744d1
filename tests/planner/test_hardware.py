"""Devices are looked up by the names that drivers and people use."""

import pytest

from parlab.planner.job.hardware import find, peak_of


@pytest.mark.parametrize(
    ("device", "precision", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-32GB", "fp16", 112),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "fp8", 1979),
        ("NVIDIA L40S", "bf16", 362),
        ("AMD Instinct MI250X", "bf16", 383),
    ],
)
def test_the_peak_depends_on_device_and_precision(device: str, precision: str, tera: float) -> None:
    peak = peak_of(device, precision)

    assert peak is not None
    assert peak.flops_per_s == pytest.approx(tera * 1e12)
    assert peak.source


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("NVIDIA GeForce GTX 1080", "fp16"),
        ("AMD EPYC 7763 64-Core Processor", "fp32"),
        ("Tesla V100-SXM2-16GB", "bf16"),
    ],
)
def test_an_unknown_device_or_precision_has_no_peak(device: str, precision: str) -> None:
    assert peak_of(device, precision) is None


@pytest.mark.parametrize(
    ("device", "name", "gibibytes"),
    [
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32 GB", 32),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16 GB", 16),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB", 80),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80 GB", 80),
        ("A100", "A100 SXM4 40 GB", 40),
        ("A100 SXM4 80 GB", "A100 SXM4 80 GB", 80),
        ("V100 32 GiB", "V100 SXM2 32 GB", 32),
        ("NVIDIA H100 NVL", "H100 NVL", 94),
        ("NVIDIA B200", "B200", 180),
    ],
)
def test_the_variant_follows_from_the_name(device: str, name: str, gibibytes: int) -> None:
    gpu = find(device)

    assert gpu is not None
    assert (gpu.name, gpu.memory_bytes) == (name, gibibytes << 30)


def test_a_measured_matmul_stays_below_the_peak_of_the_data_sheet() -> None:
    for device in ("A100", "H100"):
        gpu = find(device)
        assert gpu is not None
        assert gpu.matmul_ceiling_flops is not None
        assert gpu.matmul_ceiling_flops < gpu.peak_flops["bf16"]
