"""A sweep over networks: measured, emulated, simulated and the lower bound side by side, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from parlab.charts.format import Unit, significant, unit_for
from parlab.lab.models import Run
from parlab.lab.selectors.pipelines import Network, PipelineRun, Shape, Times, pipeline_run, times_of
from parlab.planner.schedule import Choice, Outcome, Plan, Wire, best_schedule, code_of, outcome

Source = Literal["measured", "emulated", "simulated"]


class NetworkCell(NamedTuple):
    """One schedule on one network with one micro batch size."""

    measured: PipelineRun | None
    emulated: PipelineRun | None
    simulated: Outcome | None
    slowdowns: dict[str, float]
    """Source -> time over that on the default network, where both are known."""
    error: float | None
    """Simulated over measured (or emulated) minus 1; None where it was calibrated with this very cell."""
    address: str
    """Query of /simulate/ that asks for this cell."""


class NetworkRow(NamedTuple):
    title: str
    """As the source calls the network."""
    network: Network
    is_default: bool
    cells: list[NetworkCell]


class NetworkTable(NamedTuple):
    """One schedule: networks down, micro batch sizes across."""

    title: str
    plan: Plan
    micro_batch_sizes: list[int]
    rows: list[NetworkRow]
    basis: str
    errors: str
    """How far the simulation is off where it was not calibrated."""

    @property
    def sources(self) -> list[str]:
        """Columns of each micro batch size: what anything is known of."""
        cells = [cell for row in self.rows for cell in row.cells]
        known = [name for name in ("measured", "emulated") if any(getattr(cell, name) for cell in cells)]
        return [*known, "simulated", "bound"] if any(cell.simulated for cell in cells) else known


class PickedCell(NamedTuple):
    """The schedule that suits a network, as computed and with 16 bits on the wire."""

    exact: Choice
    narrow: Choice
    address: str
    run: Run
    """Of this network and micro batch size; a configuration with the schedule is made from it."""


class Picked(NamedTuple):
    """For each network and micro batch size the schedule that suits."""

    micro_batch_sizes: list[int]
    rows: list[tuple[str, list[PickedCell | None]]]
    basis: str


class NetworkSweep(NamedTuple):
    """Everything that the page of a network sweep shows."""

    tables: list[NetworkTable]
    picked: Picked | None
    unit: Unit
    ratio: float | None
    """Backward over forward that was assumed, where somebody chose one."""

    @property
    def has_networks(self) -> bool:
        """Whether there is more than one network to compare."""
        return any(len(table.rows) > 1 for table in self.tables)

    @property
    def sources(self) -> list[str]:
        """What slowdowns are known from, the most real first."""
        known = {
            source for table in self.tables for row in table.rows for cell in row.cells for source in cell.slowdowns
        }
        return [source for source in ("measured", "emulated", "simulated") if source in known]


class _Key(NamedTuple):
    plan: Plan
    wire: Wire
    shape: Shape


def network_sweep(runs: Iterable[Run], ratio: float | None = None, *, pick: bool = True) -> NetworkSweep:
    """Shape the runs of experiments into tables, and simulate every cell from its default network alone.

    Runs that differ in model, stages or batch stand in tables of their own. `ratio` is backward over forward where a
    run has no timers; without it the recomputation of the run says. `pick` looks for the slope that suits each network.
    """
    groups: dict[_Key, list[PipelineRun]] = {}
    for run in runs:
        found = pipeline_run(run)
        if found is not None and found.step_time_s is not None:
            groups.setdefault(_Key(found.plan, found.wire, found.shape), []).append(found)
    titles = _titles(list(groups))
    tables = [_Group(key, members, ratio, _fastest(groups, key)).table(titles[key]) for key, members in groups.items()]
    seconds = [one.step_time_s for members in groups.values() for one in members]
    return NetworkSweep(tables, _picked(groups, ratio) if pick else None, unit_for(seconds, "s"), ratio)


def _titles(keys: Sequence[_Key]) -> dict[_Key, str]:
    """Name each group by its schedule, and by what else tells it from others."""
    names = {"stages": "stages", "global_batch_size": "batch", "sequence_length": "sequence", "hidden_size": "width"}
    varied = [field for field in names if len({getattr(key.shape, field) for key in keys}) > 1]
    titles = {}
    for key in keys:
        more = [f"{names[field]} {getattr(key.shape, field)}" for field in varied]
        wire = [] if key.wire == "same" else [f"{key.wire} on the wire"]
        titles[key] = ", ".join([key.plan.title, *wire, *more])
    return titles


def _fastest(groups: dict[_Key, list[PipelineRun]], key: _Key) -> dict[str, Network]:
    """Find the default network of each source: the fastest that any schedule of this model ran on."""
    alike = [one for other, members in groups.items() if other.shape == key.shape for one in members]
    largest = max(one.message_bytes for one in alike)
    found: dict[str, Network] = {}
    for one in sorted(alike, key=lambda one: one.network.link.hop_s(largest)):
        found.setdefault(one.source, one.network)
    return found


def _known_rate(network: Network, members: Sequence[PipelineRun]) -> Network:
    """Give a link without a limit the rate of the fastest other one with its delay: what a default network carries."""
    if not math.isinf(network.bits_per_s):
        return network
    alike = [one.network for one in members if one.network.delay_s == network.delay_s]
    rates = [other.bits_per_s for other in alike if not math.isinf(other.bits_per_s)]
    return network._replace(bits_per_s=max(rates, default=network.bits_per_s))


class _Group:
    """Runs of one schedule, model and batch: by network and micro batch size."""

    def __init__(
        self,
        key: _Key,
        members: Sequence[PipelineRun],
        ratio: float | None,
        fastest: Mapping[str, Network] | None = None,
    ) -> None:
        """Sort its networks; `fastest` are the default networks by source, which this schedule may lack."""
        self.key, self.ratio = key, ratio
        self.members = members = [one._replace(network=_known_rate(one.network, members)) for one in members]
        largest = max(one.message_bytes for one in members)
        by_network = {one.network: one for one in sorted(members, key=lambda one: one.source == "measured")}
        self.networks = sorted(by_network, key=lambda network: network.link.hop_s(largest))
        self.names = {network: one.network_title for network, one in by_network.items()}
        self.sizes = sorted({one.micro_batch_size for one in members})
        self.fastest = {source: _known_rate(network, members) for source, network in (fastest or {}).items()}
        self.times = {size: self._times(size) for size in self.sizes}

    @property
    def default(self) -> Network:
        """The fastest of the networks."""
        return self.networks[0]

    def find(self, network: Network, size: int, source: str | None = None) -> PipelineRun | None:
        """Find the newest run of a cell, of one source or of the first that there is."""
        found = [one for one in self.members if (one.network, one.micro_batch_size) == (network, size)]
        found = [one for one in found if source in (None, one.source)]
        return max(found, key=lambda one: (one.source == "measured", one.run.pk), default=None)

    def _times(self, size: int) -> Times | None:
        """Take the times of a micro batch from the default network; of an emulation, from what was typed in."""
        known = self.find(self.default, size)
        if known is None:
            emulated = [one for one in self.members if one.micro_batch_size == size and one.is_emulated]
            known = emulated[0] if emulated else None
        return times_of(known, self.ratio) if known else None

    def table(self, title: str) -> NetworkTable:
        rows = []
        for network in self.networks:
            cells = [self._cell(network, size) for size in self.sizes]
            rows.append(NetworkRow(self.names[network], network, network == self.default, cells))
        errors = [abs(cell.error) for row in rows for cell in row.cells if cell.error is not None]
        said = ""
        if errors:
            mean, most = significant(100 * sum(errors) / len(errors)), significant(100 * max(errors))
            cells_ = f"{len(errors)} cell{'s' * (len(errors) != 1)}"
            said = f"Simulated {mean} % off on average over {cells_} that it was not calibrated with, {most} % at most."
        return NetworkTable(title, self.key.plan, self.sizes, rows, self.basis, said)

    @property
    def basis(self) -> str:
        """Say where the times of all micro batch sizes come from."""
        found = [times for times in self.times.values() if times]
        numbers = sorted({times.run_number for times in found if times.run_number is not None})
        if len(numbers) > 1 and len({times.manner for times in found}) == 1:
            return f"{found[0].manner} of runs {', '.join(map(str, numbers))}"
        return "; ".join(dict.fromkeys(times.basis for times in found))

    def _cell(self, network: Network, size: int) -> NetworkCell:
        measured, emulated = (self.find(network, size, source) for source in ("measured", "emulated"))
        times, simulated = self.times[size], self._simulated(network, size)
        slowdowns: dict[str, float] = {}
        for source, here in (("measured", measured), ("emulated", emulated)):
            there = self.find(self.fastest[source], size, source) if source in self.fastest else None
            if here and there and here.step_time_s and there.step_time_s:
                slowdowns[source] = here.step_time_s / there.step_time_s
        default = self.fastest.get("measured") or self.fastest.get("emulated") or self.default
        basis = self._simulated(default, size)
        if simulated and basis and basis.simulation.iteration_s:
            slowdowns["simulated"] = simulated.simulation.iteration_s / basis.simulation.iteration_s
        real = measured or emulated
        is_prediction = network != self.default or not (times and times.is_fitted)
        error = None
        if simulated and real and real.step_time_s and is_prediction:
            error = simulated.simulation.iteration_s / real.step_time_s - 1
        example = real or self.find(self.default, size)
        address = simulate_address(example, times, [self.key.plan, "best"], network) if example and times else ""
        return NetworkCell(measured, emulated, simulated, slowdowns, error, address)

    def _simulated(self, network: Network, size: int) -> Outcome | None:
        times = self.times[size]
        example = next((one for one in self.members if one.micro_batch_size == size), None)
        if times is None or example is None:
            return None
        return outcome(self.key.plan, example.pipeline(times.stages, network, times.step_s), self.key.wire)


def _picked(groups: dict[_Key, list[PipelineRun]], ratio: float | None) -> Picked | None:
    """Pick a slope for every network, from the times of 1F1B where it was measured."""
    plain = [key for key in groups if key.wire == "same"]
    if not plain:
        return None
    key = next((key for key in plain if key.plan == Plan("1f1b")), plain[0])
    group = _Group(key, groups[key], ratio)
    rows = []
    for network in group.networks:
        cells = [_picked_cell(group, network, size) for size in group.sizes]
        rows.append((group.names[network], cells))
    return Picked(group.sizes, rows, group.basis) if group.basis else None


def _picked_cell(group: _Group, network: Network, size: int) -> PickedCell | None:
    times, one = group.times[size], group.find(network, size)
    if times is None or one is None:
        return None
    pipeline, width = one.pipeline(times.stages, network, times.step_s), one.shape.number_bytes
    return PickedCell(
        best_schedule(pipeline),
        best_schedule(pipeline, wires=("bf16",), element_bytes=width),
        simulate_address(one, times, [Plan("1f1b"), "best"], network),
        one.run,
    )


def simulate_address(one: PipelineRun, times: Times, plans: Sequence[Plan | str], network: Network) -> str:
    """Write the query of /simulate/ that asks the same question; plans are Plans, or codes such as `best`."""
    rate = "" if math.isinf(network.bits_per_s) else f"{network.bits_per_s / 1e9:g}"
    fields = {
        "stages": one.shape.stages,
        "micro_batches": one.micro_batches,
        "forward_ms": _list([stage.forward_s for stage in times.stages]),
        "backward_ms": _list([stage.backward_s for stage in times.stages]),
        "weight_ms": _list([stage.weight_s for stage in times.stages]),
        "optimizer_ms": f"{1e3 * times.step_s:.6g}",
        "delay_ms": f"{1e3 * network.delay_s:g}",
        "bandwidth_gbps": rate,
        "message_mb": f"{one.message_bytes / 1e6:.9g}",
        "number_bytes": one.shape.number_bytes,
        "wire": one.wire,
        "schedules": [plan if isinstance(plan, str) else code_of(plan) for plan in plans],
    }
    return urlencode(fields, doseq=True)


def _list(seconds: list[float]) -> str:
    shown = [f"{1e3 * value:.6g}" for value in seconds]
    return shown[0] if len(set(shown)) == 1 else " ".join(shown)
