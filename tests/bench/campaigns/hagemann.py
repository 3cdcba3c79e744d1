"""The sheets of Hagemann et al. 2023: layouts of LLaMA shapes on A100s that ran, and those that ran out of memory.

No constant of the time model is fitted to them. The weights of the code bases that are possible where none is named,
and the deviation of the memory of these, were chosen with half of the rows in view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from parlab.planner import Calibration, calibrate
from parlab.planner.prediction.fitting import CONFIDENT, LIKELY
from parlab.planner.prediction.prediction import Prediction, predict_job
from parlab.planner.publications import rows
from parlab.planner.publications.published import observation
from parlab.planner.publications.rows import Row
from parlab.planner.search.short_runs import chosen

SHEETS = Path(__file__).resolve().parents[4] / "shared" / "measured_2026"
_SHAPES = {"13B": (40, 5120, 40, 13824), "30B": (60, 6656, 52, 17920), "65B": (80, 8192, 64, 22016)}
"""Size -> layers, hidden size, heads, width of the MLP."""
_KERNELS = {
    "torch": "plain", "fused": "plain", "fa": "flash-1", "fa1": "flash-1", "fa2": "flash-2", "fa2rms": "flash-2",
}  # fmt: skip
BINS = 5


@dataclass(frozen=True)
class Trial:
    """One layout of a sheet, and its prediction."""

    sheet: str
    kernel: str
    row: Row
    prediction: Prediction
    is_short_run: bool = False
    """It was run for a calibration, so that its time is known, and whether it fits."""

    @property
    def ran(self) -> bool:
        """It did not run out of memory."""
        return not self.row.measured.is_oom


def trials(folder: Path, calibration: Calibration | None = None) -> list[Trial]:
    """Predict the layouts of the files `aleph_ran.tsv` and `aleph_oom.tsv` of a folder."""
    read = [part for name in ("aleph_ran.tsv", "aleph_oom.tsv") for part in _rows((folder / name).read_text())]
    return [Trial(sheet, kernel, row, predict_job(row.job, row.cluster, calibration)) for sheet, kernel, row in read]


def _rows(text: str) -> Iterator[tuple[str, str, Row]]:
    for line in text.splitlines()[1:]:
        sheet, count, kernel, recompute, tensor, stages, micro, sequence_parallel, seconds = line.split("\t")
        layers, hidden, heads, ffn = _SHAPES[sheet.split("_")[0]]
        sequence, gpus = 8192 if "8k" in sheet else 2048, int(count)
        item = {
            "id": line.replace("\t", " "),
            "group": "hagemann",
            "model": {"seq": sequence, "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn}
            | {"mlp": "gated", "vocab": 128_000},
            "parallel": {"tp": int(tensor), "pp": int(stages), "dp": gpus // (int(tensor) * int(stages))}
            | {"mbs": int(micro), "gbs": 512 if sequence == 8192 else 2048, "zero": 1, "precision": "bf16"}
            | {"schedule": "1F1B", "recompute": "full" if recompute == "full" else "none"}
            | {"attention": _KERNELS[kernel], "sequence_parallel": sequence_parallel == "1"}
            | {"fused_norms": kernel == "fa2rms"},
            "hardware": {"gpu": "A100-80GB", "count": gpus, "node": 8, "inter_node": "8x200Gb HDR"},
            "measured": {"oom": True} if seconds == "oom" else {"iter_s": float(seconds)},
        }
        yield sheet, kernel, rows.read(item)


def by_sheet(each: Sequence[Trial]) -> Mapping[str, list[Trial]]:
    """Return the trials of each sheet."""
    sheets: dict[str, list[Trial]] = defaultdict(list)
    for trial in each:
        sheets[trial.sheet].append(trial)
    return sheets


def memory_lines(each: Sequence[Trial]) -> Iterator[str]:
    """Generate the share of wrong answers, and how often jobs ran by their probability of fitting."""
    oom = [trial for trial in each if not trial.ran]
    ran = [trial for trial in each if trial.ran]
    fitting = sum(trial.prediction.fits_probability >= LIKELY for trial in oom)
    refused = sum(trial.prediction.fits_probability < LIKELY for trial in ran)
    yield f"OOM called fitting {fitting} of {len(oom)}, ran called OOM {refused} of {len(ran)}"
    for index in range(BINS):
        members = [trial for trial in each if min(BINS - 1, int(BINS * trial.prediction.fits_probability)) == index]
        if members:
            predicted = mean(trial.prediction.fits_probability for trial in members)
            share = mean(trial.ran for trial in members)
            low, high = index / BINS, (index + 1) / BINS
            yield f"P(fits) {low:.1f} to {high:.1f}: {len(members):4d} rows, {predicted:.2f} predicted, {share:.2f} ran"
    sure = [trial.ran for trial in each if trial.prediction.fits_probability >= CONFIDENT]
    yield f"P(fits) >= {CONFIDENT}: {len(sure)} rows, {sure.count(False)} ran out of memory"


def pick_lines(each: Sequence[Trial]) -> Iterator[str]:
    """Generate for each sheet and kernel what the fastest layout that surely fits would have been."""
    for sheet, members in by_sheet(each).items():
        best = min(trial.row.measured.iteration_s or 0 for trial in members if trial.ran)
        parts = []
        for name, least in (("P >= 0.95", CONFIDENT), ("P >= 0.5", LIKELY)):
            pick = min((trial for trial in members if _is_offered(trial, least)), key=_expected_s, default=None)
            parts.append(f"{name}: {_outcome(pick, best)}")
        yield f"{sheet}: {'; '.join(parts)}"


def _is_offered(trial: Trial, least: float) -> bool:
    return trial.ran if trial.is_short_run else trial.prediction.fits_probability >= least


def _expected_s(trial: Trial) -> float:
    """Return what is known of the time before the layout is chosen: its short run, or the prediction."""
    measured = trial.row.measured.iteration_s
    return measured if trial.is_short_run and measured else trial.prediction.iteration_s


def _outcome(pick: Trial | None, best_s: float) -> str:
    if pick is None:
        return "none"
    seconds = pick.row.measured.iteration_s
    return (
        "out of memory" if not pick.ran or not seconds else f"{100 * (seconds / best_s - 1):.1f} % slower than the best"
    )


def time_line(each: Sequence[Trial], title: str) -> str:
    """Return median error, bias and share of the times inside their interval."""
    timed = [trial for trial in each if not trial.is_short_run]
    pairs = [(t.prediction, t.row.measured.iteration_s) for t in timed if t.row.measured.iteration_s]
    errors = [prediction.iteration_s / seconds - 1 for prediction, seconds in pairs]
    inside = [
        seconds / (1 + prediction.spread) <= prediction.iteration_s <= seconds * (1 + prediction.spread)
        for prediction, seconds in pairs
    ]
    return (
        f"{title}: {len(errors)} times, median {100 * median(map(abs, errors)):.1f} %,"
        f" bias {100 * median(errors):+.1f} %, inside {100 * mean(inside):.0f} %"
    )


def calibrated(each: Sequence[Trial], count: int) -> list[Trial]:
    """Predict the rows of each sheet after a calibration on `count` of its short runs."""
    result = []
    for members in by_sheet(each).values():
        runs = chosen([trial.prediction for trial in members], count)
        calibration = calibrate([observation(members[index].row) for index in runs], "short runs")
        for index, trial in enumerate(members):
            prediction = predict_job(trial.row.job, trial.row.cluster, calibration)
            result.append(replace(trial, prediction=prediction, is_short_run=index in runs))
    return result
