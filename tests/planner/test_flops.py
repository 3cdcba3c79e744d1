"""FLOPs and parameters agree with published figures."""

import pytest

from parlab.planner.job.hardware import Peak
from parlab.planner.prediction.flops import (
    Shape,
    executed_flops,
    flops_per_gpu,
    hfu,
    mfu,
    model_flops,
    parameters,
)

A100 = Peak(312e12, "NVIDIA A100 data sheet")

# Narayanan et al. 2021 (SC21), table 1, vocabulary 51,200, sequence 2,048: layers, hidden size, global batch, GPUs,
# TFLOP/s per GPU as printed; then parameters in billions and seconds per iteration, derived from them.
SC21 = [
    (24, 2304, 512, 32, 137, 1.7, 3.52),
    (30, 3072, 512, 64, 138, 3.6, 3.71),
    (36, 4096, 512, 128, 142, 7.5, 3.69),
    (40, 6144, 1024, 256, 135, 18.4, 9.39),
    (48, 8192, 1536, 512, 138, 39.1, 14.42),
    (60, 10240, 1792, 1024, 140, 76.1, 16.01),
    (80, 12288, 2304, 1536, 148, 145.6, 24.84),
    (96, 16384, 2160, 1920, 155, 310.1, 37.64),
    (105, 20480, 2520, 2520, 163, 529.6, 54.16),
    (128, 25600, 3072, 3072, 163, 1008.0, 102.37),
]
TRILLION = Shape(128, 25600, 2048, 51200)


@pytest.mark.parametrize(("layers", "hidden", "batch", "gpus", "tflops", "billions", "seconds"), SC21)
def test_tflops_follow_from_the_iteration_time_within_one_percent(
    layers: int, hidden: int, batch: int, gpus: int, tflops: float, billions: float, seconds: float
) -> None:
    shape = Shape(layers, hidden, 2048, 51200)

    computed = flops_per_gpu(executed_flops(shape, batch, "full"), gpus, seconds) / 1e12

    assert computed == pytest.approx(tflops, rel=0.01)
    assert parameters(shape) / 1e9 == pytest.approx(billions, abs=0.0501)


def test_the_trillion_parameter_row_is_52_percent_of_peak_by_hardware_and_39_by_model() -> None:
    seconds = executed_flops(TRILLION, 3072, "full") / (3072 * 163e12)

    assert hfu(TRILLION, 3072, 3072, seconds, A100, "full") == pytest.approx(0.522, abs=0.0005)
    assert mfu(TRILLION, 3072, 3072, seconds, A100) == pytest.approx(0.392, abs=0.0005)


def test_without_recompute_executed_flops_equal_model_flops() -> None:
    assert executed_flops(TRILLION, 3072, "none") == model_flops(TRILLION, 3072)


def test_selective_recompute_adds_one_forward_pass_of_the_attention_core() -> None:
    shape = Shape(96, 12288, 2048, 51200)

    extra = executed_flops(shape, 1, "selective") - model_flops(shape, 1)

    assert extra == pytest.approx(4 * 2048**2 * 96 * 12288)
    assert model_flops(shape, 1) < executed_flops(shape, 1, "selective") < executed_flops(shape, 1, "full")


def test_full_recompute_adds_one_forward_pass_of_the_layers_but_not_of_the_logits() -> None:
    shape = Shape(24, 1024, 512, 30592)
    forward_of_layers = 24 * 512 * 24 * 1024**2 * (1 + 512 / (6 * 1024))

    assert executed_flops(shape, 1, "full") - model_flops(shape, 1) == pytest.approx(forward_of_layers)


@pytest.mark.parametrize(
    ("gpus", "seconds", "message"), [(0, 1.0, "gpus 0"), (8, 0.0, "step_time_s 0"), (8, -1.0, "-1.0")]
)
def test_an_error_names_gpus_or_time_out_of_range(gpus: int, seconds: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flops_per_gpu(1e15, gpus, seconds)
