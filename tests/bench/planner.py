"""`make bench-planner`: how far the planner is off published measurements, on rows that it was not fitted to.

Uncalibrated: the constants are fitted to all other groups, then the group is predicted. Calibrated: the rows of a
group are dealt into five parts, each predicted after a calibration on the other four. Groups are publications: one
cluster, one code base each.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from statistics import median

from parlab.planner.calibration import DEFAULT, Calibration, calibrate
from parlab.planner.parameters import MemoryParameters, TimeParameters
from parlab.planner.published import Calibrations, load, observation, predict_row, read_measured
from parlab.planner.rows import Row

VALIDATION = Path(__file__).resolve().parents[3] / "shared" / "validation"
PARTS = 5
BETWEEN, SPRING = 0.05, 0.5
"""Noise and spring of a fit to many code bases, which one set of constants cannot explain: stiffer than that of one."""


@dataclass
class Errors:
    """Relative errors of one group, or of all."""

    time: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    oom_called_fitting: int = 0
    oom: int = 0
    ran_called_not_fitting: int = 0
    ran: int = 0

    def add(self, row: Row, calibration: Calibration) -> None:
        """Predict a row and compare."""
        predicted = predict_row(row, calibration)
        known = observation(row)
        if known.iteration_s:
            self.time.append(predicted.iteration_s / known.iteration_s - 1)
        if known.memory_bytes:
            self.memory.append(predicted.memory_bytes / known.memory_bytes - 1)
        if known.is_oom:
            self.oom += 1
            self.oom_called_fitting += predicted.fits
        else:
            self.ran += 1
            self.ran_called_not_fitting += not predicted.fits

    def join(self, other: "Errors") -> None:
        """Add another group's errors."""
        self.time += other.time
        self.memory += other.memory
        for name in ("oom_called_fitting", "oom", "ran_called_not_fitting", "ran"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each publication."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def generic(groups: Sequence[list[Row]]) -> Calibration:
    """Fit one set of constants to groups; a group counts as much as the root of its rows."""
    rows = [row for group in groups for row in group]
    weights = [1 / len(group) ** 0.5 for group in groups for _row in group]
    fitted = calibrate([observation(row) for row in rows], "other groups", start(), weights, BETWEEN, SPRING)
    return replace(fitted, usable_share=DEFAULT.usable_share)


def start() -> Calibration:
    """Where fits of generic constants begin: what the literature lets expect."""
    time = TimeParameters(
        matmul_efficiency=0.95,
        matmul_traffic=1.5,
        memory_efficiency=0.75,
        host_s=1e-3,
        inside_efficiency=0.6,
        between_efficiency=0.5,
        shaped_efficiency=0.95,
        step_s=0.02,
        misaligned_slowdown=4.0,
        sharded_efficiency=0.3,
    )
    memory = MemoryParameters(
        fragmentation=1.05,
        flat_factor=1.05,
        bucket_values=5e8,
        logit_bytes=8.0,
        communicator_bytes=6e8,
        overhead_bytes=1.2e9,
    )
    return replace(DEFAULT, time=time, memory=memory)


def held_out_groups(groups: dict[str, list[Row]]) -> dict[str, Errors]:
    """Predict each group with constants that were fitted to the others."""
    result = {}
    for name, rows in groups.items():
        constants = generic([other for key, other in groups.items() if key != name])
        result[name] = Errors()
        for row in rows:
            result[name].add(row, constants)
    return result


def held_out_half(groups: dict[str, list[Row]], deal: Random) -> dict[str, Errors]:
    """Predict half of the groups with constants that were fitted to the other half."""
    held_out = deal.sample(sorted(groups), len(groups) // 2)
    constants = generic([rows for name, rows in groups.items() if name not in held_out])
    result = {name: Errors() for name in held_out}
    for name in held_out:
        for row in groups[name]:
            result[name].add(row, constants)
    return result


def held_out_parts(groups: dict[str, list[Row]], deal: Random | None = None) -> dict[str, Errors]:
    """Predict a fifth of each group after a calibration on the rest of it, and on all other groups' rows.

    Rows are dealt in their order, or at random.
    """
    if deal is not None:
        groups = {name: deal.sample(rows, len(rows)) for name, rows in groups.items()}
    result = {name: Errors() for name in groups}
    for part in range(PARTS):
        known = [row for rows in groups.values() for at, row in enumerate(rows) if at % PARTS != part]
        calibrations = Calibrations(known)
        for name, rows in groups.items():
            for row in rows[part::PARTS]:
                result[name].add(*calibrations.of(row))
    return result


def shipped(groups: dict[str, list[Row]]) -> dict[str, Errors]:
    """Predict everything with the constants that the planner ships."""
    result = {name: Errors() for name in groups}
    for name, rows in groups.items():
        for row in rows:
            result[name].add(row, DEFAULT)
    return result


def table(title: str, errors: dict[str, Errors]) -> str:
    """Errors by group, in per cent."""
    lines = [
        title,
        f"{'group':<18}{'times':>6}{'median':>8}{'p90':>7}{'bias':>8}{'memory':>8}{'median':>8}{'p90':>7}"
        f"{'OOM fits':>10}{'ran not':>9}",
    ]
    total = Errors()
    for name, one in errors.items():
        lines.append(_line(name, one))
        total.join(one)
    return "\n".join([*lines, _line("all", total), ""])


def _line(name: str, errors: Errors) -> str:
    def figures(values: list[float]) -> tuple[str, str]:
        if not values:
            return "-", "-"
        sizes = sorted(map(abs, values))
        return f"{100 * median(sizes):.1f}", f"{100 * sizes[int(0.9 * len(sizes))]:.1f}"

    bias = f"{100 * median(errors.time):+.1f}" if errors.time else "-"
    time, memory = figures(errors.time), figures(errors.memory)
    return (
        f"{name:<18}{len(errors.time):>6}{time[0]:>8}{time[1]:>7}{bias:>8}{len(errors.memory):>8}{memory[0]:>8}"
        f"{memory[1]:>7}{errors.oom_called_fitting:>5} of {errors.oom}"
        f"{errors.ran_called_not_fitting:>5} of {errors.ran}"
    )


def spread(title: str, deals: Sequence[dict[str, Errors]]) -> str:
    """The range of the medians over some deals, in per cent: how much of them is the luck of one."""
    totals = [Errors() for _deal in deals]
    for total, errors in zip(totals, deals, strict=True):
        for one in errors.values():
            total.join(one)
    words = []
    for what, found in (("time", [one.time for one in totals]), ("memory", [one.memory for one in totals])):
        medians = [100 * median(map(abs, errors)) for errors in found if errors]
        if medians:
            words.append(f"{what} {min(medians):.1f} to {max(medians):.1f} %")
    fitting = max(one.oom_called_fitting for one in totals)
    not_fitting = [100 * one.ran_called_not_fitting / one.ran for one in totals if one.ran]
    words.append(f"out of memory called fitting {fitting} at most")
    words.append(f"ran called not fitting {min(not_fitting):.1f} to {max(not_fitting):.1f} %")
    return f"{title}, {len(deals)} deals: {', '.join(words)}\n"


def constants(calibration: Calibration) -> str:
    """The constants and how many rows they were fitted to."""
    lines = [
        f"{len(fields(TimeParameters))} constants of time, {calibration.time_rows} rows;"
        f" {len(fields(MemoryParameters))} of memory, {calibration.memory_rows} rows"
    ]
    for kind in (calibration.time, calibration.memory):
        lines += [f"  {one.name} = {getattr(kind, one.name):.3g}" for one in fields(kind)]
    return "\n".join(lines)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.planner", description=__doc__)
    parser.add_argument("--data", type=Path, default=VALIDATION, help="folder of measured.json and vtrain_single.json")
    parser.add_argument("--deals", type=int, default=5, help="times that rows and groups are dealt at random")
    arguments = parser.parse_args()
    files = [arguments.data / name for name in ("measured.json", "vtrain_single.json")]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        sys.stderr.write(f"no {', '.join(missing)}; name their folder with --data\n")
        return 2
    groups = by_group(read_measured(load(files[0].read_text())))
    single = by_group(read_measured(load(files[1].read_text())))
    out = sys.stdout.write
    out(table("Uncalibrated: constants fitted to the other groups, % of what was measured", held_out_groups(groups)))
    out("\n" + table("Calibrated on other rows of the group", held_out_parts(groups)))
    out("\n" + table("As shipped (fitted to these rows)", shipped(groups)))
    out("\n" + table("One node, 960 rows, never fitted", shipped(single)))
    out("\n" + table("One node, calibrated on other rows", held_out_parts(single)))
    deals = [Random(seed) for seed in range(arguments.deals)]
    if deals:
        out("\n" + spread("Half of the groups held out, at random", [held_out_half(groups, one) for one in deals]))
        out(spread("Calibrated, rows dealt at random", [held_out_parts(groups, one) for one in deals]))
    out("\nFitted to all groups: " + constants(generic(list(groups.values()))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
