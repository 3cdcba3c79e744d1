"""Network sweeps: published figures, emulated and measured runs side by side with what is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.demo.content import published_three_nodes
from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.selectors.analysis.pipelines import has_pipelines, network_in_text, pipeline_of, times_of
from parlab.pages.rows.networks import network_sweep
from parlab.planner.schedule import Plan
from runners.config import RunConfig, with_values
from tests.conftest import SMALL

THREE_NODES = "gpt-3-small-on-three-nodes"
SLOW = {"network.apply": "emulate", "network.delay_ms": 10, "network.bandwidth_gbps": 1}


@pytest.fixture
def published(user: User) -> list[Run]:
    published_three_nodes(user)
    return list(Experiment.objects.get(slug=THREE_NODES).runs.select_related("experiment"))


@pytest.fixture
def emulated(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]) -> Callable[..., Run]:
    """Make a finished emulated run: emulated(0.5, {"network.delay_ms": 10})."""

    def make(step_time_s: float, values: dict[str, Any], compute: str = "emulated") -> Run:
        times = {"emulation.forward_ms": [10.0], "emulation.backward_ms": [30.0], "train.compute": "emulated"}
        data = with_values(SMALL, {**(times if compute == "emulated" else {}), **values})
        attempt = make_attempt(config=make_config(data=data), state="finished")
        run = attempt.run
        run.resolved = RunConfig.model_validate(data).resolved()
        run.summary = {"step_time_s": {"median": step_time_s}}
        run.save()
        return run

    return make


def test_both_published_tables_have_simulation_and_bound(published: list[Run]) -> None:
    sweep = network_sweep(published)
    assert [table.title for table in sweep.tables] == ["gpipe", "1f1b"]
    for table, least in zip(sweep.tables, (0.788, 2.31), strict=True):
        assert table.micro_batch_sizes == [1, 2, 4]
        assert [row.is_default for row in table.rows] == [True, False, False, False]
        assert table.sources == ["measured", "simulated", "bound"]
        assert f"{least} % off on average over 9 cells" in table.errors
    slowest = sweep.tables[1].rows[-1]
    assert slowest.title == "delay 10ms bandwidth 1Gbps"
    cell = slowest.cells[0]
    assert cell.measured is not None
    assert cell.simulated is not None
    assert cell.measured.step_time_s == 11.21
    assert cell.slowdowns["measured"] == pytest.approx(11.21 / 6.54)
    assert cell.simulated.bound.seconds == pytest.approx(6.63, abs=0.01)
    assert sweep.tables[0].rows[0].cells[0].error is None  # calibrated with it
    assert sweep.sources == ["measured", "simulated"]


def test_the_best_schedule_for_the_slow_network_has_slope_3(published: list[Run]) -> None:
    picked = network_sweep(published).picked
    assert picked is not None
    cell = picked.rows[-1][1][0]
    assert cell is not None
    assert cell.exact.best.plan == Plan("1f1b", 3)
    assert cell.exact.best.held == 7
    assert cell.narrow.best.simulation.iteration_s == pytest.approx(6.23, abs=0.01)


def test_the_ratio_of_backward_to_forward_changes_the_simulation(published: list[Run]) -> None:
    three, two = (network_sweep(published, ratio).tables[0].rows[-1].cells[0] for ratio in (3.0, 2.0))
    assert three.simulated is not None
    assert two.simulated is not None
    assert three.simulated.simulation.iteration_s != two.simulated.simulation.iteration_s


def test_emulated_runs_are_simulated_with_their_configured_times(emulated: Callable[..., Run]) -> None:
    fast = emulated(0.21, {"network.apply": "emulate", "network.delay_ms": 0.1, "network.bandwidth_gbps": 10})
    slow = emulated(0.26, SLOW)
    (table,) = network_sweep([fast, slow]).tables
    assert table.sources == ["emulated", "simulated", "bound"]
    assert [row.title for row in table.rows] == ["0.1 ms, 10 Gbit/s", "10 ms, 1 Gbit/s"]
    cell = table.rows[1].cells[0]
    assert cell.slowdowns["emulated"] == pytest.approx(0.26 / 0.21)
    assert cell.simulated is not None
    # Two stages, four micro batches of 40 ms, neighbours one apart: each waits for its round trip.
    assert cell.simulated.simulation.iteration_s == pytest.approx(0.24, abs=0.01)
    assert table.rows[0].cells[0].error is not None  # nothing was calibrated with it
    assert has_pipelines([fast, slow])
    assert not has_pipelines([])


def test_an_unlimited_default_link_shares_the_row_of_the_published_one(published: list[Run]) -> None:
    """An emulated network without a rate limit gets the rate of the published one with the same delay: 10 Gbit/s."""
    same = Run.objects.get(experiment__slug=THREE_NODES, number=13)
    network = {"network.apply": "emulate", "network.delay_ms": 0.1}
    resolved = with_values(same.resolved, {**network, "train.compute": "emulated", "emulation.forward_ms": [23.0]})
    again = Run(
        experiment=same.experiment, number=99, state="finished", point={}, origin=Run.Origin.MEASURED, pk=10**6,
        resolved=with_values(resolved, {"emulation.backward_ms": [69.0]}), summary={"step_time_s": {"median": 6.6}},
    )  # fmt: skip
    table = network_sweep([*published, again]).tables[1]
    assert len(table.rows) == 4
    assert table.rows[0].title == "default (about 0.1ms; up to 10Gbps)"
    cell = table.rows[0].cells[0]
    assert cell.measured is not None
    assert cell.emulated is not None
    assert cell.slowdowns == {"measured": 1.0, "emulated": 1.0, "simulated": 1.0}


def test_timers_of_a_measured_run_give_the_times_of_its_passes(emulated: Callable[..., Run]) -> None:
    run = emulated(0.5, {}, compute="real")
    run.summary["timers_s"] = {
        name: {"by_rank": {"0": seconds, "1": 2 * seconds}}
        for name, seconds in (("forward-compute", 0.04), ("backward-compute", 0.08), ("optimizer", 0.01))
    }
    pipeline_run = pipeline_of(run)
    assert pipeline_run is not None
    times = times_of(pipeline_run)
    assert times is not None
    assert [stage.forward_s for stage in times.stages] == [0.01, 0.02]
    assert [stage.backward_s for stage in times.stages] == [0.02, 0.04]
    assert times.step_s == 0.02
    assert not times.is_fitted
    assert pipeline_run.network.title == "links as they are"


def test_a_schedule_that_never_ran_on_the_default_network_has_no_measured_slowdown(
    emulated: Callable[..., Run],
) -> None:
    fast = emulated(0.21, {"network.apply": "emulate", "network.delay_ms": 0.1, "network.bandwidth_gbps": 10})
    slow = emulated(0.26, {**SLOW, "parallel.warmup_slope": 2})
    cell = network_sweep([fast, slow]).tables[1].rows[0].cells[0]
    assert set(cell.slowdowns) == {"simulated"}
    assert cell.slowdowns["simulated"] > 1


def test_runs_with_differing_links_are_left_out(emulated: Callable[..., Run]) -> None:
    run = emulated(0.3, {**SLOW, "network.links": [{"source": 0, "target": 1, "delay_ms": 20}]})
    assert pipeline_of(run) is None
    several = with_values(
        emulated(0.4, {**SLOW, "train.seed": 5}).resolved, {"cluster.nodes": 2, "cluster.gpus_per_node": 2}
    )
    assert pipeline_of(Run(resolved=several, point={}, summary={})) is None


@pytest.mark.parametrize(
    "values",
    [
        {"parallel.schedule": "chimera"},
        {"parallel.schedule": "interleaved-1f1b", "parallel.virtual_stages": 2, "train.global_batch_size": 3},
        {"parallel.warmup_slope": -3},
        {"parallel.pipeline_parallel_size": 10**6},
        {"train.global_batch_size": 10**9},
        {"model.hidden_size": 10**15},
        {"model.hidden_size": -5},
        {"network.delay_ms": 1e12},
        {"network.bandwidth_gbps": 1e-12},
    ],
)
def test_values_out_of_range_yield_no_pipeline(emulated: Callable[..., Run], values: dict[str, Any]) -> None:
    run = emulated(0.3, SLOW)
    run.resolved = with_values(run.resolved, values)
    assert pipeline_of(run) is None
    assert network_sweep([run]).tables == []


def test_times_out_of_range_are_ignored(emulated: Callable[..., Run]) -> None:
    run = emulated(0.3, SLOW, compute="real")
    run.summary["timers_s"] = {
        name: {"by_rank": {"0": 1e17, "1": -1}} for name in ("forward-compute", "backward-compute")
    }
    pipeline_run = pipeline_of(run)
    assert pipeline_run is not None
    assert times_of(pipeline_run) is None
    assert network_sweep([run]).tables[0].rows[0].cells[0].simulated is None


def test_runs_of_different_models_are_in_separate_tables(emulated: Callable[..., Run]) -> None:
    runs = [emulated(0.3, SLOW), emulated(0.6, {**SLOW, "train.global_batch_size": 8})]
    assert [table.title for table in network_sweep(runs).tables] == ["1f1b, batch 4", "1f1b, batch 8"]


def test_runs_without_a_size_are_left_out(emulated: Callable[..., Run]) -> None:
    run = emulated(0.3, SLOW)
    for section, field in (
        ("parallel", "pipeline_parallel_size"),
        ("model", "hidden_size"),
        ("train", "global_batch_size"),
    ):
        resolved = {**run.resolved, section: {k: v for k, v in run.resolved[section].items() if k != field}}
        assert pipeline_of(Run(resolved=resolved, point={}, summary={})) is None
    odd = with_values(run.resolved, {"train.micro_batch_size": "many"})
    assert pipeline_of(Run(resolved=odd, point={}, summary={})) is None


@pytest.mark.parametrize(
    ("text", "delay_s", "bits_per_s"),
    [
        ("default (about 0.1ms; up to 10Gbps)", 1e-4, 10e9),
        ("delay 10ms  bandwidth 1Gbps", 1e-2, 1e9),
        ("5 ms, 500 Mbit/s", 5e-3, 5e8),
        ("100 Gb/s", 0.0, 100e9),
        ("20ms", 2e-2, float("inf")),
    ],
)
def test_networks_are_read_from_text(text: str, delay_s: float, bits_per_s: float) -> None:
    network = network_in_text(text)
    assert network is not None
    assert network.delay_s == pytest.approx(delay_s)
    assert network.bits_per_s == bits_per_s


def test_text_without_a_network_yields_none() -> None:
    assert network_in_text("InfiniBand") is None
    assert network_in_text("") is None


def test_no_measured_run_is_faster_than_the_bound_of_its_network(published: list[Run]) -> None:
    """1F1B took 6.54 s where the passes of GPipe alone would bound every order to 6.64 s."""
    cells = [
        (row.network, size, cell)
        for table in network_sweep(published).tables
        for row in table.rows
        for size, cell in zip(table.micro_batch_sizes, row.cells, strict=True)
    ]
    assert len(cells) == 24
    for network, size, cell in cells:
        assert cell.bound is not None
        times = [other.measured.step_time_s for n, s, other in cells if (n, s) == (network, size) and other.measured]
        assert all(seconds is not None and cell.bound.seconds <= seconds * (1 + 1e-9) for seconds in times)
    assert cells[0][2].bound is not None
    assert 5.5 < cells[0][2].bound.seconds <= 6.54


def test_a_run_on_links_faster_than_stated_leaves_no_bound(emulated: Callable[..., Run]) -> None:
    fast = emulated(0.21, {"network.apply": "emulate", "network.delay_ms": 0.1, "network.bandwidth_gbps": 10})
    impossible = emulated(0.001, SLOW)
    rows = network_sweep([fast, impossible]).tables[0].rows
    assert rows[0].cells[0].bound is not None
    assert rows[1].cells[0].bound is None
