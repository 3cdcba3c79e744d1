"""Links and emulated times in a configuration: what is refused says field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from runners.config import ConfigError, RunConfig, check, expand

PAIR = {"parallel": {"pipeline_parallel_size": 2}}
TIMES = {"emulation": {"forward_ms": 25, "backward_ms": [75]}, "train": {"compute": "emulated"}}


@pytest.mark.parametrize(
    ("network", "field", "message"),
    [
        ({"apply": "emulate", "delay_ms": -1}, "network.delay_ms", "invalid value -1 for network.delay_ms"),
        ({"apply": "emulate", "delay_ms": 1e6}, "network.delay_ms", "less than or equal to 10000"),
        ({"apply": "emulate", "bandwidth_gbps": 0}, "network.bandwidth_gbps", "greater than or equal to 0.001"),
        ({"apply": "emulate", "bandwidth_gbps": float("inf")}, "network.bandwidth_gbps", "finite"),
        ({"apply": "emulate", "loss_pct": 100}, "network.loss_pct", "less than or equal to 50"),
        ({"apply": "emulate", "delay_ms": 1, "jitter_ms": 2}, "network.jitter_ms", "use at most 1"),
        ({"delay_ms": 1}, "network.delay_ms", "no effect with apply none"),
        ({"apply": "emulate", "interface": "eth0"}, "network.interface", "leave it empty"),
        ({"apply": "interface", "delay_ms": 1}, "network.interface", "requires the name of a network interface"),
        ({"apply": "interface", "delay_ms": 1, "interface": "lo"}, "network.interface", "use apply emulate"),
        ({"apply": "interface", "delay_ms": 1, "interface": "a b; rm"}, "network.interface", "should match pattern"),
        ({"apply": "interface", "interface": "eth0"}, "network.apply", "without delay, rate or loss"),
        ({"apply": "emulate", "links": [{"source": 0, "target": 2}]}, "network.links.0", "0 to 1"),
        ({"apply": "emulate", "links": [{"source": 1, "target": 1}]}, "network.links.0", "use two different ends"),
        ({"apply": "emulate", "links": [{"source": 0, "target": 1}] * 2}, "network.links.1", "listed twice"),
        (
            {"apply": "emulate", "delay_ms": 5, "jitter_ms": 2, "links": [{"source": 0, "target": 1, "delay_ms": 1}]},
            "network.links.0",
            "smaller jitter",
        ),
    ],
)
def test_links_that_make_no_sense_are_refused(network: dict[str, Any], field: str, message: str) -> None:
    config, problems = check(PAIR | {"network": network})
    assert config is None
    assert any(problem.field == field and message in problem.message for problem in problems), problems


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({"network": {"apply": "emulate"}}, "network.apply", "a single rank has no links"),
        (
            PAIR | {"network": {"apply": "emulate"}, "parallel": {"engine": "capacity"}},
            "network.apply",
            "engine capacity starts its own processes",
        ),
        ({"train": {"compute": "emulated"}}, "emulation.forward_ms", "set it, or source_run"),
        ({"emulation": {"forward_ms": 3}}, "emulation.forward_ms", "requires train.compute emulated"),
        (
            {"emulation": {"forward_ms": [1, 2, 3], "backward_ms": 1}, "train": {"compute": "emulated"}} | PAIR,
            "emulation.forward_ms",
            "3 values for 2 stages; use 1 value, or 2",
        ),
        (TIMES | {"parallel": {"engine": "zero"}}, "train.compute", "requires engine pipeline, not zero"),
        (TIMES | {"cluster": {"device": "cuda"}}, "cluster.device", "use device cpu or auto"),
        ({"emulation": {"source_run": "../3"}}, "emulation.source_run", "should match pattern"),
    ],
)
def test_times_that_make_no_sense_are_refused(data: dict[str, Any], field: str, message: str) -> None:
    config, problems = check(data)
    assert config is None
    assert any(problem.field == field and message in problem.message for problem in problems), problems


def test_one_time_stands_for_all_stages() -> None:
    assert RunConfig.model_validate(TIMES | PAIR).emulation.forward_ms == [25]


def test_links_join_nodes_where_there_are_several_and_ranks_elsewhere() -> None:
    four: dict[str, Any] = {"parallel": {"pipeline_parallel_size": 4}}
    assert RunConfig.model_validate(four).num_hosts == 4
    two = RunConfig.model_validate(four | {"cluster": {"nodes": 2}})
    assert (two.num_hosts, two.ranks_per_host) == (2, 2)


def test_fields_of_one_axis_change_together() -> None:
    networks = [[0.1, 10], [10, 1]]
    base = PAIR | {"network": {"apply": "emulate"}}
    axes: dict[str, Any] = {"network.delay_ms, network.bandwidth_gbps": networks, "train.micro_batch_size": [1, 2]}
    points = expand(base, axes)
    assert [point.values for point in points[1:3]] == [
        {"network.delay_ms": 0.1, "network.bandwidth_gbps": 10, "train.micro_batch_size": 2},
        {"network.delay_ms": 10, "network.bandwidth_gbps": 1, "train.micro_batch_size": 1},
    ]
    assert [point.config.network.bandwidth_gbps for point in points if point.config] == [10, 10, 1, 1]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"train.seed, train.iterations": [[1, 2], 3]}, "a list of 2 values"),
        ({"train.seed, train.iterations": [[1, 2, 3]]}, "a list of 2 values"),
        ({"train.seed, train.seeds": [[1, 2]]}, "unknown field train.seeds"),
        ({"train.seed": [1], "train.seed, train.iterations": [[1, 2]]}, "train.seed is in two axes"),
    ],
)
def test_an_axis_of_several_fields_that_makes_no_sense_is_refused(sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand({}, sweep)
