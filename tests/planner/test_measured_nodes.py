"""What a node measured of itself takes the place of data sheets and usual values in its plans."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.planner import predict
from parlab.planner.job.hardware import find
from parlab.planner.job.nodes import cluster_of
from parlab.planner.prediction.attention import fused_share
from runners.config import RunConfig

CONFIG = RunConfig.model_validate(
    {
        "parallel": {"engine": "megatron", "tensor_parallel_size": 8},
        "model": {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 4096},
        "cluster": {"device": "cuda"},
    }
)


def curve(*, latency_s: float, bytes_s: float, ranks: int, is_exchange: bool = False) -> list[list[float]]:
    """Return the times of an all-reduce, or an all-to-all, over links of this kind."""
    share = (ranks - 1) / ranks * (1 if is_exchange else 2)
    hops = 0 if is_exchange else 2 * (ranks - 1)
    return [[size, hops * latency_s + share * size / bytes_s] for size in (2**16, 2**20, 2**24, 2**28)]


RATES: dict[str, Any] = {
    "device": "NVIDIA H200",
    "devices": 8,
    "matrix": {"bf16": 750e12, "fp32": 51e12},
    "attention": 495e12,
    "memory": 4.24e12,
    "host": 55e9,
    "all_reduce": {
        "2": curve(latency_s=1e-5, bytes_s=300e9, ranks=2),
        "8": curve(latency_s=2e-6, bytes_s=360e9, ranks=8),
    },
    "all_to_all": {"8": curve(latency_s=0, bytes_s=310e9, ranks=8, is_exchange=True)},
}
NODE = {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 150 << 30}] * 8, "cpu_cores": 64}


def test_the_rates_of_a_gpu_replace_its_data_sheet() -> None:
    plain, gpu = cluster_of(NODE, CONFIG).device, cluster_of({**NODE, "rates": RATES}, CONFIG).device
    assert gpu.matmul_ceiling_flops == 750e12
    assert gpu.peak_flops == plain.peak_flops
    assert gpu.memory_bandwidth == pytest.approx(4.71e12, rel=0.01)
    assert gpu.host_bandwidth == 55e9
    assert fused_share(gpu, 3, 4096, 128) == pytest.approx(495 / 750, rel=1e-6)
    assert fused_share(plain, 3, 4096, 128) != fused_share(gpu, 3, 4096, 128)


def test_the_links_inside_a_node_are_those_of_its_curves_for_all_its_devices() -> None:
    inside = cluster_of({**NODE, "rates": RATES}, CONFIG).inside
    assert inside.bandwidth == pytest.approx(360e9, rel=1e-6)
    assert inside.latency_s == pytest.approx(2e-6, rel=1e-6)
    assert inside.exchange == pytest.approx(310e9, rel=1e-6)
    assert inside.is_measured


def test_a_slow_measured_link_makes_tensor_parallelism_slow() -> None:
    slow = RATES | {"all_reduce": {"8": curve(latency_s=2e-5, bytes_s=10e9, ranks=8)}}
    seconds = [predict(CONFIG, cluster_of({**NODE, "rates": rates}, CONFIG)).iteration_s for rates in (RATES, slow)]
    assert seconds[1] > 1.5 * seconds[0]


def test_rates_of_gpus_say_nothing_of_processes_on_the_processor() -> None:
    config = CONFIG.model_copy(update={"cluster": CONFIG.cluster.model_copy(update={"device": "cpu"})})
    assert cluster_of({**NODE, "rates": RATES}, config) == cluster_of(NODE, config)


def test_processes_share_the_measured_memory_bandwidth_of_their_cores() -> None:
    rates = {"device": "CPU process", "devices": 2, "memory": 9e9, "all_reduce": {"2": RATES["all_reduce"]["2"]}}
    config = RunConfig.model_validate({"parallel": {"pipeline_parallel_size": 2}, "cluster": {"device": "cpu"}})
    where = cluster_of({"cpu_cores": 2, "rates": rates}, config)
    assert where.device.memory_bandwidth == pytest.approx(10e9)
    assert where.inside.bandwidth == pytest.approx(300e9, rel=1e-6)


@pytest.mark.parametrize(
    "rates",
    [
        None,
        [],
        {"device": "NVIDIA H200"},
        RATES
        | {"matrix": None, "attention": float("nan"), "memory": -1, "host": "fast", "all_reduce": {"8": [[1, 2]]}},
        RATES | {"matrix": {"bf16": True}, "memory": 0, "host": None, "all_reduce": {"8": "?", "x": []}},
        RATES | {"matrix": {}, "memory": 1e30, "host": 0, "all_reduce": {"1": [[1, 1], [2, 2]], "8": [[1], 3, [0, 0]]}},
    ],
)
def test_damaged_rates_change_nothing(rates: Any) -> None:
    assert cluster_of({**NODE, "rates": rates}, CONFIG) == cluster_of(NODE, CONFIG)


def test_a_curve_that_falls_with_the_size_has_the_rate_of_its_largest_message() -> None:
    rates = RATES | {"all_reduce": {"8": [[1000, 2.0], [2000, 1.0]]}, "all_to_all": {}}
    inside = cluster_of({**NODE, "rates": rates}, CONFIG).inside
    assert inside.bandwidth == pytest.approx(2 * 7 / 8 * 2000)
    assert inside.latency_s == 0
    assert inside.exchange is None


def test_an_h200_measures_nearly_what_its_data_sheet_says() -> None:
    gpu = find("NVIDIA H200")
    assert gpu is not None
    assert RATES["memory"] / 0.9 == pytest.approx(gpu.memory_bandwidth, rel=0.05)
