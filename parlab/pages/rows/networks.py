"""A sweep over networks: measured, emulated and simulated step times beside the lower bound, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from parlab.charts.format import Unit, for_column, significant, unit_for
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.pipelines import Network, PipelineRun, Shape, Times, pipeline_of, times_of
from parlab.planner.schedule import Bound, Choice, Outcome, Plan, Wire, best_schedule, code_of, outcome

from .network_bounds import Passes, by_network, fastest_passes, network_bound

Source = Literal["measured", "emulated", "simulated"]


class NetworkCell(NamedTuple):
    """One schedule on one network with one micro batch size."""

    measured: PipelineRun | None
    emulated: PipelineRun | None
    simulated: Outcome | None
    bound: Bound | None
    """Of all schedules on this network; None if a run was faster than the stated links allow."""
    slowdowns: dict[str, float]
    """Source -> step time divided by that on the default network, if both are available."""
    error: float | None
    """Simulated over measured (or emulated) time, minus 1; None if the times were calibrated with this cell."""
    address: str
    """Query string of /simulate/ for this cell."""


class NetworkRow(NamedTuple):
    title: str
    """The name of the network in its source."""
    network: Network
    is_default: bool
    cells: list[NetworkCell]


class NetworkTable(NamedTuple):
    """One schedule: networks as rows, micro batch sizes as columns."""

    title: str
    plan: Plan
    micro_batch_sizes: list[int]
    rows: list[NetworkRow]
    basis: str
    errors: str
    """Error of the simulation in cells that it was not calibrated with, as a sentence."""

    @property
    def sources(self) -> list[str]:
        """Columns of each micro batch size: the sources that have a value in any cell."""
        cells = [cell for row in self.rows for cell in row.cells]
        names = [name for name in ("measured", "emulated") if any(getattr(cell, name) for cell in cells)]
        return [*names, "simulated", "bound"] if any(cell.simulated for cell in cells) else names


class PickedCell(NamedTuple):
    """The best schedule for a network, with messages in the precision of the model and with 16-bit messages."""

    exact: Choice
    narrow: Choice
    address: str
    run: Run
    """A run on this network with this micro batch size, from which a configuration with the schedule is created."""


class Picked(NamedTuple):
    """The best schedule for each network and micro batch size."""

    micro_batch_sizes: list[int]
    rows: list[tuple[str, list[PickedCell | None]]]
    basis: str


class NetworkSweep(NamedTuple):
    """Contents of the page of a network sweep."""

    tables: list[NetworkTable]
    picked: Picked | None
    unit: Unit
    ratio: float | None
    """Ratio of backward to forward time that the user chose; None for the default of each run."""

    @property
    def has_networks(self) -> bool:
        """Whether any table has more than one network."""
        return any(len(table.rows) > 1 for table in self.tables)

    @property
    def sources(self) -> list[str]:
        """Sources that have slowdowns: measured first, then emulated, then simulated."""
        names = {name for table in self.tables for row in table.rows for cell in row.cells for name in cell.slowdowns}
        return [name for name in ("measured", "emulated", "simulated") if name in names]


class _Key(NamedTuple):
    plan: Plan
    wire: Wire
    shape: Shape


def network_sweep(runs: Iterable[Run], ratio: float | None = None, *, pick: bool = True) -> NetworkSweep:
    """Arrange the runs of experiments in tables, and simulate every cell with the times of its default network.

    Runs that differ in model, stages or batch go to separate tables. `ratio` is backward over forward time of runs
    without timers; without it, the recomputation of the run determines the ratio. `pick` selects the best warm-up
    slope for each network.
    """
    groups: dict[_Key, list[PipelineRun]] = {}
    for run in runs:
        pipeline_run = pipeline_of(run)
        if pipeline_run is not None and pipeline_run.step_time_s is not None:
            key = _Key(pipeline_run.plan, pipeline_run.wire, pipeline_run.shape)
            groups.setdefault(key, []).append(pipeline_run)
    titles = _titles(list(groups))
    arranged = [_Group(key, members, ratio, _fastest(groups, key)) for key, members in groups.items()]
    tables = [group.table(titles[group.key], _passes(arranged, group.key.shape)) for group in arranged]
    everyone = [member for members in groups.values() for member in members]
    unit = unit_for((member.step_time_s for member in everyone), "s")
    unit = for_column(unit, ((member.step_time_s, member.run.has_printed_numbers) for member in everyone))
    return NetworkSweep(tables, _picked(groups, ratio) if pick else None, unit, ratio)


class _Evidence(NamedTuple):
    """What the runs of one model and micro batch size show about all of its schedules."""

    passes: Passes
    runs: list[PipelineRun]


def _passes(groups: Sequence[_Group], shape: Shape) -> dict[int, _Evidence]:
    """Return the fastest passes of a model by micro batch size, over all of its schedules."""
    same = [group for group in groups if group.key.shape == shape]
    evidence = {}
    for size in {size for group in same for size in group.sizes}:
        times = [each for group in same if (each := group.times.get(size))]
        runs = [run for group in same for run in group.members if run.micro_batch_size == size]
        if times:
            evidence[size] = _Evidence(fastest_passes(times, runs), runs)
    return evidence


def _titles(keys: Sequence[_Key]) -> dict[_Key, str]:
    """Name each group by its schedule and by the sizes that differ between groups."""
    names = {"stages": "stages", "global_batch_size": "batch", "sequence_length": "sequence", "hidden_size": "width"}
    varied = [field for field in names if len({getattr(key.shape, field) for key in keys}) > 1]
    titles = {}
    for key in keys:
        sizes = [f"{names[field]} {getattr(key.shape, field)}" for field in varied]
        wire = [] if key.wire == "same" else [f"{key.wire} on the wire"]
        titles[key] = ", ".join([key.plan.title, *wire, *sizes])
    return titles


def _fastest(groups: dict[_Key, list[PipelineRun]], key: _Key) -> dict[str, Network]:
    """Return the default network of each source: the fastest network that any schedule of this model ran on."""
    same_shape = [member for other, members in groups.items() if other.shape == key.shape for member in members]
    largest = max(member.message_bytes for member in same_shape)
    networks: dict[str, Network] = {}
    for member in sorted(same_shape, key=lambda member: member.network.link.hop_s(largest)):
        networks.setdefault(member.source, member.network)
    return networks


def _with_rate(network: Network, members: Sequence[PipelineRun]) -> Network:
    """Give a link without a rate limit the highest rate of other networks with the same delay."""
    if not math.isinf(network.bits_per_s):
        return network
    same_delay = [member.network for member in members if member.network.delay_s == network.delay_s]
    rates = [other.bits_per_s for other in same_delay if not math.isinf(other.bits_per_s)]
    return network._replace(bits_per_s=max(rates, default=network.bits_per_s))


class _Group:
    """Runs of one schedule, model and batch, by network and micro batch size."""

    def __init__(
        self,
        key: _Key,
        members: Sequence[PipelineRun],
        ratio: float | None,
        fastest: Mapping[str, Network] | None = None,
    ) -> None:
        """Sort the networks; `fastest` are the default networks by source, on which this schedule may have no run."""
        self.key, self.ratio = key, ratio
        self.members = members = [member._replace(network=_with_rate(member.network, members)) for member in members]
        largest = max(member.message_bytes for member in members)
        by_network = {member.network: member for member in sorted(members, key=lambda run: run.source == "measured")}
        self.networks = sorted(by_network, key=lambda network: network.link.hop_s(largest))
        self.names = {network: member.network_title for network, member in by_network.items()}
        self.sizes = sorted({member.micro_batch_size for member in members})
        self.fastest = {source: _with_rate(network, members) for source, network in (fastest or {}).items()}
        self.times = {size: self._times(size) for size in self.sizes}

    @property
    def default(self) -> Network:
        return self.networks[0]

    def find(self, network: Network, size: int, source: str | None = None) -> PipelineRun | None:
        """Return the newest run of a cell from one source; without a source, measured runs come first."""
        matches = [
            member
            for member in self.members
            if (member.network, member.micro_batch_size) == (network, size) and source in (None, member.source)
        ]
        return max(matches, key=lambda member: (member.source == "measured", member.run.pk), default=None)

    def _times(self, size: int) -> Times | None:
        """Return the pass times of a micro batch size on the default network, else those configured for emulation."""
        example = self.find(self.default, size)
        if example is None:
            emulated = [member for member in self.members if member.micro_batch_size == size and member.is_emulated]
            example = emulated[0] if emulated else None
        return times_of(example, self.ratio) if example else None

    def table(self, title: str, evidence: Mapping[int, _Evidence]) -> NetworkTable:
        rows = []
        for network in self.networks:
            cells = [self._network_cell(network, size, evidence.get(size)) for size in self.sizes]
            rows.append(NetworkRow(self.names[network], network, network == self.default, cells))
        return NetworkTable(title, self.key.plan, self.sizes, rows, self.basis, _error_sentence(rows))

    @property
    def basis(self) -> str:
        """Describe where the times of all micro batch sizes come from."""
        all_times = [times for times in self.times.values() if times]
        numbers = sorted({times.run_number for times in all_times if times.run_number is not None})
        if len(numbers) > 1 and len({times.manner for times in all_times}) == 1:
            return f"{all_times[0].manner} of runs {', '.join(map(str, numbers))}"
        return "; ".join(dict.fromkeys(times.basis for times in all_times))

    def _network_cell(self, network: Network, size: int, evidence: _Evidence | None) -> NetworkCell:
        measured, emulated = (self.find(network, size, source) for source in ("measured", "emulated"))
        simulated, times = self._simulated(network, size), self.times[size]
        example = measured or emulated or self.find(self.default, size)
        address = simulate_address(example, times, [self.key.plan, "best"], network) if example and times else ""
        slowdowns = self._slowdowns(network, size, simulated)
        error = self._error(network, size, simulated, measured or emulated)
        bound = self._bound(network, size, evidence) if evidence else None
        return NetworkCell(measured, emulated, simulated, bound, slowdowns, error, address)

    def _bound(self, network: Network, size: int, evidence: _Evidence) -> Bound | None:
        example = next(member for member in self.members if member.micro_batch_size == size)
        same_wire = [run for run in evidence.runs if run.wire == self.key.wire]
        return network_bound(evidence.passes, example, network, by_network(same_wire).get(network, []))

    def _slowdowns(self, network: Network, size: int, simulated: Outcome | None) -> dict[str, float]:
        """Divide the step times of a cell by those on the default network, by source."""
        slowdowns: dict[str, float] = {}
        for source in ("measured", "emulated"):
            here = self.find(network, size, source)
            there = self.find(self.fastest[source], size, source) if source in self.fastest else None
            if here and there and here.step_time_s and there.step_time_s:
                slowdowns[source] = here.step_time_s / there.step_time_s
        default = self.fastest.get("measured") or self.fastest.get("emulated") or self.default
        base = self._simulated(default, size)
        if simulated and base and base.simulation.iteration_s:
            slowdowns["simulated"] = simulated.simulation.iteration_s / base.simulation.iteration_s
        return slowdowns

    def _error(
        self, network: Network, size: int, simulated: Outcome | None, executed: PipelineRun | None
    ) -> float | None:
        times = self.times[size]
        is_calibration = network == self.default and times is not None and times.is_fitted
        if is_calibration or not simulated or not executed or not executed.step_time_s:
            return None
        return simulated.simulation.iteration_s / executed.step_time_s - 1

    def _simulated(self, network: Network, size: int) -> Outcome | None:
        times = self.times[size]
        example = next((member for member in self.members if member.micro_batch_size == size), None)
        if times is None or example is None:
            return None
        return outcome(self.key.plan, example.pipeline(times.stages, network, times.step_s), self.key.wire)


def _error_sentence(rows: Sequence[NetworkRow]) -> str:
    errors = [abs(cell.error) for row in rows for cell in row.cells if cell.error is not None]
    if not errors:
        return ""
    mean, largest = significant(100 * sum(errors) / len(errors)), significant(100 * max(errors))
    count = f"{len(errors)} cell{'s' * (len(errors) != 1)}"
    return f"The simulation is {mean} % off on average over {count} not used for its calibration, {largest} % at most."


def _picked(groups: dict[_Key, list[PipelineRun]], ratio: float | None) -> Picked | None:
    """Pick a warm-up slope for every network, with the times of 1F1B if it was measured."""
    unchanged = [key for key in groups if key.wire == "same"]
    if not unchanged:
        return None
    key = next((key for key in unchanged if key.plan == Plan("1f1b")), unchanged[0])
    group = _Group(key, groups[key], ratio)
    rows = []
    for network in group.networks:
        cells = [_picked_cell(group, network, size) for size in group.sizes]
        rows.append((group.names[network], cells))
    return Picked(group.sizes, rows, group.basis) if group.basis else None


def _picked_cell(group: _Group, network: Network, size: int) -> PickedCell | None:
    times, example = group.times[size], group.find(network, size)
    if times is None or example is None:
        return None
    pipeline, width = example.pipeline(times.stages, network, times.step_s), example.shape.number_bytes
    return PickedCell(
        best_schedule(pipeline),
        best_schedule(pipeline, wires=("bf16",), element_bytes=width),
        simulate_address(example, times, [Plan("1f1b"), "best"], network),
        example.run,
    )


def simulate_address(pipeline_run: PipelineRun, times: Times, plans: Sequence[Plan | str], network: Network) -> str:
    """Return the query string of /simulate/ for a run; `plans` are Plans, or codes such as `best`."""
    rate = "" if math.isinf(network.bits_per_s) else f"{network.bits_per_s / 1e9:g}"
    fields = {
        "stages": pipeline_run.shape.stages,
        "micro_batches": pipeline_run.micro_batches,
        "forward_ms": _milliseconds([stage.forward_s for stage in times.stages]),
        "backward_ms": _milliseconds([stage.backward_s for stage in times.stages]),
        "weight_ms": _milliseconds([stage.weight_s for stage in times.stages]),
        "optimizer_ms": f"{1e3 * times.step_s:.6g}",
        "delay_ms": f"{1e3 * network.delay_s:g}",
        "bandwidth_gbps": rate,
        "message_mb": f"{pipeline_run.message_bytes / 1e6:.9g}",
        "number_bytes": pipeline_run.shape.number_bytes,
        "wire": pipeline_run.wire,
        "schedules": [plan if isinstance(plan, str) else code_of(plan) for plan in plans],
    }
    return urlencode(fields, doseq=True)


def _milliseconds(seconds: list[float]) -> str:
    """Write times in ms: one number if all are equal, otherwise one for each stage."""
    texts = [f"{1e3 * value:.6g}" for value in seconds]
    return texts[0] if len(set(texts)) == 1 else " ".join(texts)
