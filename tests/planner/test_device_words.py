"""The device that a text names."""

from __future__ import annotations

import pytest

from parlab.planner.job.device_words import INSTANCES, device_in_text
from parlab.planner.job.hardware import find


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A cluster of 3 AWS p3.2xlarge instances", "V100 SXM2 16 GB"),
        ("1 node with 16 Nvidia V100 GPUs", "V100 SXM2 16 GB"),
        ("nodes with 4x V100-32GB; V100s have 125 TFLOP/s", "V100 SXM2 32 GB"),
        ("they used 80GB A100s", "A100 SXM4 80 GB"),
        ("8 x A100-SXM4-80GB (A100)", "A100 SXM4 80 GB"),
        ("H100 80GB HBM3 and H200", None),
        ("on P4d.24xlarge, in us-east-1", "A100 SXM4 40 GB"),
        ("p4d.24xlarge and p5.48xlarge", None),
        ("128 GPUs", None),
    ],
)
def test_a_text_that_names_one_device_states_it(text: str, name: str | None) -> None:
    device = device_in_text(text)
    assert (device.name if device else None) == name


def test_instances_have_devices_of_the_catalogue() -> None:
    assert all(map(find, INSTANCES.values()))
