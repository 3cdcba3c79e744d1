"""Network below its rate, from timers of the exchange of gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.advice.observations import Signs
from parlab.advice.rules import Case, advise
from parlab.advice.waterfalls.exchange import exchanged_bytes, rate_of, reached_of
from parlab.planner import Cluster, Job, Model, cluster

from .test_rules import measured_on

JOB = Job(Model(24, 2048, 16, 2048, 50_000), 512, 1, 1, 1, 32, has_flash_attention=True)
KNOWN = cluster("A100", 32, inter_node_gbit_s=1600)


def network_advice(slower: float, where: Cluster = KNOWN, rate: float | None = None) -> list[str]:
    fall = measured_on(JOB, where, data=slower)
    reached = reached_of(fall, JOB, rate_of(JOB, where, rate))
    return [
        row.evidence for row in advise(Case(fall, JOB, where, signs=Signs(reached=reached))) if row.kind == "network"
    ]


def test_an_exchange_far_below_the_rate_of_the_network_is_named_without_a_trace() -> None:
    (evidence,) = network_advice(10.0)
    assert evidence.startswith("the exchange of gradients reaches")
    assert evidence.endswith("of 200 GB/s")
    assert network_advice(1.0) == []


def test_the_bandwidth_is_that_of_nccl_tests() -> None:
    fall = measured_on(JOB, KNOWN, data=10.0)
    reached = reached_of(fall, JOB, 200e9)
    assert reached is not None
    parameters, bytes_each = JOB.model.parameters, JOB.gradient_bytes or JOB.value_bytes
    seconds = fall.ns("data") / 1e9
    assert reached.bandwidth == pytest.approx(parameters * bytes_each * 2 * 31 / 32 / seconds)
    assert reached.share == fall.share("data")


def test_a_rate_that_nobody_stated_or_measured_is_no_ceiling() -> None:
    assumed = cluster("A100", 32)
    assert assumed.is_between_assumed
    assert rate_of(JOB, assumed) is None
    assert rate_of(JOB, assumed, 25e9) == 25e9  # measured before the ranks began
    assert rate_of(replace(JOB, data_parallel=8), cluster("A100", 8)) == 300e9  # NVLink, from the data sheet
    assert rate_of(replace(JOB, data_parallel=4), cluster("CPU EPYC 9654", 4, 4)) is None
    assert network_advice(10.0, assumed) == []


def test_exchanges_that_no_timer_separates_have_no_bandwidth() -> None:
    assert exchanged_bytes(replace(JOB, zero_stage=3)) is None
    assert exchanged_bytes(replace(JOB, data_parallel=1)) is None
    whole = exchanged_bytes(JOB)
    assert whole is not None
    assert exchanged_bytes(replace(JOB, tensor_parallel=2)) == pytest.approx(whole / 2)
