"""`make bench-planner`: errors of the planner on published measurements to which it was not fitted.

Uncalibrated: the constants are fitted to all other publications, then the publication is predicted. Calibrated: the
rows of a group are split into five parts, and each part is predicted after a calibration on the other four. A group is
a publication, or a part of one with one cluster and one code base.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import log
from pathlib import Path
from random import Random
from statistics import median

from parlab.planner import predict_job
from parlab.planner.calibration.calibration import CODE_BASES, DEFAULT, Calibration, calibrate
from parlab.planner.calibration.levels import Excess, estimated
from parlab.planner.job.cluster import device
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.prediction.memory import outside_bytes
from parlab.planner.prediction.parameters import MemoryParameters, TimeParameters
from parlab.planner.publications import sc21
from parlab.planner.publications.published import Calibrations, load, observation, predict_row, read_measured
from parlab.planner.publications.rows import Row
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.layouts import search
from tests.docs.pages import write_table

from . import hagemann, scoreboard

VALIDATION = Path(__file__).resolve().parents[4] / "shared" / "validation"
PARTS = 5
PUBLICATION = {
    "mosaic_table": "mosaic_fsdp",
    "sc21_t2": "sc21_t1",
    "seed001": "dtfm",
    "dtfm_dp": "dtfm",
    "dtfm_megatron": "dtfm",
    "dtfm_zero3": "dtfm",
}
"""Group -> the first group of the same publication; all of its groups are held out together."""
RELEASED = "megatron_bridge"
"""Publication with several releases of its code base."""
MODERN = ("mosaic_table", "megatron_bridge", "torchtitan", "megatron_llama", "llama3_paper")
"""Groups of trainings since 2023."""
ALLOCATED = ("zero_bubble_t4", "torchtitan")
"""Groups that print the memory of torch's allocator; the others print the driver's."""
BETWEEN, SPRING = 0.05, 0.5
"""Noise and spring of a fit to many code bases: stiffer than for a single one, since no constants explain all."""
PUBLICATION_ROWS = 20
"""Rows that each publication counts as in a fit of the time constants, however many it has: the next publication is
one more code base, not one more row."""


@dataclass
class Errors:
    """Relative errors of one group or of all groups."""

    time: list[float] = field(default_factory=list)
    inside: int = 0
    """Times within the 80 % interval of their prediction."""
    memory: list[float] = field(default_factory=list)
    oom_called_fitting: int = 0
    oom: int = 0
    ran_called_not_fitting: int = 0
    ran: int = 0

    def add(self, row: Row, calibration: Calibration) -> None:
        """Predict a row and compare the prediction with the measurement."""
        predicted = predict_row(row, calibration)
        measured = observation(row)
        if measured.iteration_s:
            self.time.append(predicted.iteration_s / measured.iteration_s - 1)
            self.inside += abs(log(predicted.iteration_s / measured.iteration_s)) <= log(1 + predicted.spread)
        if measured.memory_bytes:
            outside = outside_bytes(predicted.job, calibration.memory, row.cluster.domain)
            outside *= measured.is_allocated
            self.memory.append((predicted.memory_bytes - outside) / measured.memory_bytes - 1)
        if measured.is_oom:
            self.oom += 1
            self.oom_called_fitting += predicted.fits
        else:
            self.ran += 1
            self.ran_called_not_fitting += not predicted.fits

    def join(self, other: "Errors") -> None:
        """Add another group's errors."""
        self.time += other.time
        self.memory += other.memory
        for name in ("inside", "oom_called_fitting", "oom", "ran_called_not_fitting", "ran"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def published_rows(files: Iterable[Path]) -> list[Row]:
    """Read the rows of files, with what their memory figures are of."""
    rows = [row for path in files for row in read_measured(load(path.read_text()))]
    return [replace(row, measured=replace(row.measured, is_allocated=row.group in ALLOCATED)) for row in rows]


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each publication."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def publication(group: str) -> str:
    """Return the name of the publication of a group."""
    return PUBLICATION.get(group, group)


def generic(groups: Sequence[list[Row]], deviation: float = CODE_BASES) -> Calibration:
    """Fit one set of constants to groups; `deviation` is that of the factors of the code bases.

    Times count by publication. Few publications have memory figures, so that a group of these counts as the square root
    of its number of rows.
    """
    rows = [row for group in groups for row in group]
    published = Counter(publication(row.group) for row in rows)
    timed = [replace(observation(row), memory_bytes=None, is_oom=False) for row in rows]
    by_publication = [PUBLICATION_ROWS / published[publication(row.group)] for row in rows]
    names = [publication(row.group) for row in rows]
    times = calibrate(timed, "other groups", start(), by_publication, BETWEEN, SPRING, names, deviation)
    sized = [replace(observation(row), iteration_s=None) for row in rows]
    by_group = [1 / len(group) ** 0.5 for group in groups for _row in group]
    sizes = calibrate(sized, "other groups", start(), by_group, BETWEEN, SPRING, names)
    fitted = replace(
        times,
        local=None,
        memory=sizes.memory,
        memory_rows=sizes.memory_rows,
        memory_error=sizes.memory_error,
        usable_share=DEFAULT.usable_share,
    )
    return replace(fitted, levels=estimated(_excesses(rows, fitted)))


def _excesses(rows: Iterable[Row], fitted: Calibration) -> Iterator[Excess]:
    """Generate what the constants leave unexplained, for the effects of code bases and releases."""
    for row in rows:
        if row.measured.iteration_s:
            ratio = row.measured.iteration_s / predict_row(row, fitted).iteration_s
            yield Excess(row.job.code_base, row.job.release, publication(row.group), log(ratio))


def start() -> Calibration:
    """Return the initial constants of a fit, which are typical values of the literature."""
    time = TimeParameters(
        matmul_efficiency=0.95,
        matmul_traffic=1.5,
        memory_efficiency=0.75,
        host_s=1e-3,
        inside_efficiency=0.6,
        between_efficiency=0.5,
        shaped_efficiency=0.95,
        step_s=0.02,
        straggler_share=0.0075,
        misaligned_slowdown=4.0,
        sharded_efficiency=0.3,
        attention_efficiency=1.0,
        low_precision_efficiency=0.85,
        exchange_efficiency=1.0,
        grouped_efficiency=0.6,
        routing_s=1e-3,
        expert_s=1e-4,
    )
    memory = MemoryParameters(
        fragmentation=1.05,
        flat_factor=1.05,
        bucket_values=5e8,
        logit_bytes=8.0,
        communicator_bytes=6e8,
        overhead_bytes=1.2e9,
    )
    return replace(DEFAULT, time=time, memory=memory, levels={})


def held_out_constants(groups: dict[str, list[Row]], deviation: float = CODE_BASES) -> dict[str, Calibration]:
    """Return constants fitted to the other publications, for each group."""
    fitted: dict[str, Calibration] = {}
    for name in groups:
        if publication(name) not in fitted:
            others = [rows for other, rows in groups.items() if publication(other) != publication(name)]
            fitted[publication(name)] = generic(others, deviation)
    return {name: fitted[publication(name)] for name in groups}


def released(groups: dict[str, list[Row]]) -> Iterator[str]:
    """Generate the errors of each release of a code base, with constants fitted to all other rows.

    Only one publication has experts, so that nothing else tells how well the constants for experts carry over.
    """
    releases = sorted({row.job.release for row in groups.get(RELEASED, []) if row.job.release})
    kinds = {"dense": Errors(), "experts": Errors()}
    for release in releases:
        others = [[row for row in rows if row.job.release != release] for rows in groups.values()]
        constants = generic([rows for rows in others if rows])
        for row in groups[RELEASED]:
            if row.job.release == release:
                kinds["experts" if row.job.model.num_experts > 1 else "dense"].add(row, constants)
    if releases:
        yield table(f"Each release of {RELEASED} left out", kinds)


def predicted(groups: dict[str, list[Row]], constants: dict[str, Calibration]) -> dict[str, Errors]:
    """Predict the rows of each entry of `groups` with the constants of each row's group."""
    result = {name: Errors() for name in groups}
    for name, rows in groups.items():
        for row in rows:
            result[name].add(row, constants[row.group])
    return result


def held_out_half(groups: dict[str, list[Row]], deal: Random) -> dict[str, Errors]:
    """Predict half of the groups, chosen by `deal`, with constants fitted to the other half."""
    held_out = deal.sample(sorted(groups), len(groups) // 2)
    constants = generic([rows for name, rows in groups.items() if name not in held_out])
    result = {name: Errors() for name in held_out}
    for name in held_out:
        for row in groups[name]:
            result[name].add(row, constants)
    return result


def held_out_parts(groups: dict[str, list[Row]], deal: Random | None = None) -> dict[str, Errors]:
    """Predict each fifth of each group after a calibration on the other rows of all groups.

    Rows are split in their order, or at random with `deal`.
    """
    if deal is not None:
        groups = {name: deal.sample(rows, len(rows)) for name, rows in groups.items()}
    result = {name: Errors() for name in groups}
    for part in range(PARTS):
        others = [row for rows in groups.values() for index, row in enumerate(rows) if index % PARTS != part]
        calibrations = Calibrations(others)
        for name, rows in groups.items():
            for row in rows[part::PARTS]:
                result[name].add(*calibrations.of(row))
    return result


def shipped(groups: dict[str, list[Row]]) -> dict[str, Errors]:
    """Predict all groups with the planner's default constants."""
    result = {name: Errors() for name in groups}
    for name, rows in groups.items():
        for row in rows:
            result[name].add(row, DEFAULT)
    return result


def by_kind(groups: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return the rows of modern groups by what is hard about them; a row may be of several kinds."""
    rows = [row for name in MODERN for row in groups.get(name, [])]
    return {
        "dense": [row for row in rows if row.job.model.num_experts == 1],
        "experts": [row for row in rows if row.job.model.num_experts > 1],
        "context parallel": [row for row in rows if row.job.context_parallel > 1],
        "16k tokens and more": [row for row in rows if row.job.model.sequence_length >= 16_384],
    }


def table(title: str, errors: dict[str, Errors]) -> str:
    """Return a table of the errors by group, in percent."""
    lines = [
        title,
        f"{'group':<18}{'times':>6}{'median':>8}{'p90':>7}{'bias':>8}{'in 80 %':>9}{'memory':>8}{'median':>8}{'p90':>7}"
        f"{'OOM fits':>10}{'ran not':>9}",
    ]
    for name, group_errors in errors.items():
        lines.append(_error_row(name, group_errors))
    kinds = {"2021 to 2023": [n for n in errors if n not in MODERN], "since 2023": [n for n in errors if n in MODERN]}
    for kind, names in (kinds | {"all": list(errors)}).items():
        total = Errors()
        for name in names:
            total.join(errors[name])
        lines.append(_error_row(kind, total))
    return "\n".join([*lines, ""])


def _error_row(name: str, errors: Errors) -> str:
    def figures(values: list[float]) -> tuple[str, str]:
        if not values:
            return "-", "-"
        sizes = sorted(map(abs, values))
        return f"{100 * median(sizes):.1f}", f"{100 * sizes[int(0.9 * len(sizes))]:.1f}"

    bias = f"{100 * median(errors.time):+.1f}" if errors.time else "-"
    inside = f"{100 * errors.inside / len(errors.time):.0f} %" if errors.time else "-"
    time, memory = figures(errors.time), figures(errors.memory)
    return (
        f"{name:<18}{len(errors.time):>6}{time[0]:>8}{time[1]:>7}{bias:>8}{inside:>9}{len(errors.memory):>8}{memory[0]:>8}"
        f"{memory[1]:>7}{errors.oom_called_fitting:>5} of {errors.oom}"
        f"{errors.ran_called_not_fitting:>5} of {errors.ran}"
    )


def spread(title: str, deals: Sequence[dict[str, Errors]]) -> str:
    """Return the range of the medians over several random splits, in percent."""
    totals = [Errors() for _deal in deals]
    for total, errors in zip(totals, deals, strict=True):
        for group_errors in errors.values():
            total.join(group_errors)
    parts = []
    for measure in ("time", "memory"):
        medians = [100 * median(map(abs, getattr(total, measure))) for total in totals if getattr(total, measure)]
        if medians:
            parts.append(f"{measure} {min(medians):.1f} to {max(medians):.1f} %")
    fitting = max(total.oom_called_fitting for total in totals)
    not_fitting = [100 * total.ran_called_not_fitting / total.ran for total in totals if total.ran]
    parts.append(f"OOM predicted to fit: {fitting} at most")
    parts.append(f"ran, predicted not to fit: {min(not_fitting):.1f} to {max(not_fitting):.1f} %")
    return f"{title}, {len(deals)} splits: {', '.join(parts)}\n"


DEVIATIONS = (0.005, 0.01, 0.0125, 0.015, 0.018, 0.02, 0.025, 0.03, 0.05)
"""Deviations of the factors of code bases that `--deviations` compares."""


def deviations(groups: dict[str, list[Row]]) -> Iterator[str]:
    """Generate a line for each deviation: held-out medians, NVIDIA's table and the search for Llama 3 405B."""
    yield (
        f"{'deviation':>10}{'2021-2023':>11}{'since 2023':>12}{'all':>7}{'worst of SC21':>18}{'405B, TFLOP/s':>15}"
        f"{'inside_eff.':>12}{'straggler':>11}"
    )
    for deviation in DEVIATIONS:
        errors = predicted(groups, held_out_constants(groups, deviation))
        old = [error for name, group in errors.items() if name not in MODERN for error in group.time]
        new = [error for name, group in errors.items() if name in MODERN for error in group.time]
        fitted = replace(generic(list(groups.values()), deviation), local=None)
        name, worst = max(_sc21_errors(fitted), key=lambda entry: abs(entry[1]))
        middle = [100 * median(map(abs, values)) for values in (old, new, old + new)]
        yield (
            f"{deviation:>10}{middle[0]:>11.1f}{middle[1]:>12.1f}{middle[2]:>7.1f}{name:>10}{worst:>+8.1f}"
            f"{_llama_rate(fitted):>15.0f}{fitted.time.inside_efficiency:>12.2f}{fitted.time.straggler_share:>11.4f}"
        )


def _sc21_errors(calibration: Calibration) -> Iterator[tuple[str, float]]:
    """Generate the error (%) of the FLOP/s of each row of NVIDIA's table."""
    for row in sc21.TABLE:
        job, where = sc21.published_job(row)
        rate = flops_of(job)[1] / (row.gpus * predict_job(job, where, calibration).iteration_s) / 1e12
        yield row.name, 100 * (rate / row.tflops_per_gpu - 1)


def _llama_rate(calibration: Calibration) -> float:
    """Return the model TFLOP/s per GPU of the search's best layout for Llama 3 405B on 16,384 H100."""
    fields = {"model": "Llama 3.1 405B", "gpu": "H100 SXM", "nodes": 2048, "global_batch": 2048}
    request = PlanRequest.model_validate(fields | {"pipeline_parallel": 16, "recompute": "none"})
    best = search(request.job(), request.cluster(device("H100 SXM")), calibration, request.overlap).fitting[0]
    return flops_of(best.job)[0] / (best.job.world_size * best.prediction.iteration_s) / 1e12


def constants(calibration: Calibration) -> str:
    """Return the constants and the number of rows to which they were fitted."""
    lines = [
        f"{len(fields(TimeParameters))} time constants, {calibration.time_rows} rows;"
        f" {len(fields(MemoryParameters))} memory constants, {calibration.memory_rows} rows"
    ]
    for parameters in (calibration.time, calibration.memory):
        lines += [f"  {constant.name} = {getattr(parameters, constant.name):.3g}" for constant in fields(parameters)]
    lines += [
        f"  {name}: Level({shift:.3f}, {deviation:.3f})" for name, (shift, deviation) in calibration.levels.items()
    ]
    return "\n".join(lines)


def unseen(folder: Path) -> Iterator[str]:
    """Generate the figures of publications to which no constant was fitted: times, fits, and after short runs."""
    if not (folder / "aleph_ran.tsv").exists():
        yield f"\nNo rows of unseen publications in {folder}; set their directory with --unseen"
        return
    recent = folder / "rows_2026.json"
    if recent.exists():
        errors = Errors()
        for row in read_measured(load(recent.read_text())):
            errors.add(row, DEFAULT)
        yield "\n" + table("Rows of 2025 and 2026, never fitted", {"rows_2026": errors}).splitlines()[2]
    yield "\nHagemann et al. 2023, no constant of the time fitted"
    trials = hagemann.trials(folder)
    yield hagemann.time_line(trials, "uncalibrated")
    yield from hagemann.memory_lines(trials)
    yield from hagemann.pick_lines(trials)
    for count in (5, 6):
        calibrated = hagemann.calibrated(trials, count)
        yield hagemann.time_line(calibrated, f"after {count} short runs of each sheet")
        yield from hagemann.pick_lines(calibrated)


def main() -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.campaigns.planner", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=VALIDATION,
        help="directory with measured.json, modern.json and vtrain_single.json",
    )
    parser.add_argument("--scoreboard", type=Path, help="page whose table `scoreboard` is written")
    parser.add_argument(
        "--unseen", type=Path, default=hagemann.SHEETS, help="directory with rows to which no constant was fitted"
    )
    parser.add_argument("--deals", type=int, default=5, help="number of random splits of rows and groups")
    parser.add_argument("--deviations", action="store_true", help="compare deviations of code bases, and nothing else")
    arguments = parser.parse_args()
    files = [arguments.data / name for name in ("measured.json", "modern.json", "vtrain_single.json")]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        sys.stderr.write(f"{', '.join(missing)} not found; set their directory with --data\n")
        return 2
    groups = by_group(published_rows(files[:2]))
    if arguments.deviations:
        for line in deviations(groups):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return 0
    single = by_group(read_measured(load(files[2].read_text())))
    out = sys.stdout.write
    held_out = held_out_constants(groups)
    title = "Uncalibrated: constants fitted to the other publications, % of the measurement"
    out(table(title, predicted(groups, held_out)))
    out("\n" + table("Uncalibrated, rows since 2023 by kind", predicted(by_kind(groups), held_out)))
    for part in released(groups):
        out("\n" + part)
    if arguments.scoreboard:
        one_node = [row for rows in single.values() for row in rows]
        write_table(arguments.scoreboard, "scoreboard", scoreboard.tables(groups, held_out, one_node, PARTS))
    out("\n" + table("Calibrated on other rows of the group", held_out_parts(groups)))
    out("\n" + table("As shipped (fitted to these rows)", shipped(groups)))
    out("\n" + table("One node, 960 rows, never fitted", shipped(single)))
    out("\n" + table("One node, calibrated on other rows", held_out_parts(single)))
    for line in unseen(arguments.unseen):
        out(line + "\n")
    deals = [Random(seed) for seed in range(arguments.deals)]
    if deals:
        out("\n" + spread("Half of the groups held out, at random", [held_out_half(groups, deal) for deal in deals]))
        out(spread("Calibrated, rows split at random", [held_out_parts(groups, deal) for deal in deals]))
    out("\nFitted to all groups: " + constants(generic(list(groups.values()))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
