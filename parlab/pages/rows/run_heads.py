"""The head of a run's page: its progress and its main numbers with what stands below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.utils import timezone

from parlab.charts.format import (
    DASH,
    DIGITS,
    SPACE,
    duration,
    exact_quantity,
    printed_digits,
    quantity,
    significant,
    unit_for,
)
from parlab.charts.svg import Svg, progress_bar
from parlab.lab.models import Attempt, Finding, Run
from parlab.lab.selectors.analysis.stragglers import slowest_rank, slowest_stage
from parlab.lab.selectors.analysis.utilisation import compute, measured_pct, peak_text, share_pct
from parlab.lab.selectors.environments import basis_in_words
from parlab.lab.selectors.figures import KINDS
from parlab.lab.selectors.layouts import rank_layout
from parlab.lab.selectors.runs import model_text, run_figures, step_time
from runners.wire.protocol import RunState

MAX_NUMBERS = 7
"""Numbers of a head; the further ones that a file states stand in the details."""


class HeadNumber(NamedTuple):
    title: str
    value: str
    unit: str = ""
    below: str = ""
    note: str = ""
    """All digits, and how it was computed."""
    doubts: Sequence[Finding] = ()
    figure: str = ""
    """What the marks of its source are named; leads there from an imported run."""
    field: str = ""
    """Its name in the directives of reports and dashboards, if it is one value."""


class Progress(NamedTuple):
    """How far an active run is."""

    percent: int
    text: str

    @property
    def bar(self) -> Svg:
        return progress_bar(self.percent / 100, f"{self.percent} % of the steps")


def _head_number(run: Run, title: str, value: float, unit: str, **more: Any) -> HeadNumber:
    field = more.pop("field", "")
    text, _, name = quantity(value, unit, printed_digits(value, unit) if run.prints(field) else DIGITS).partition(SPACE)
    if (kind := run.kind_of(field)) in KINDS:
        more["below"] = ", ".join(filter(None, [more.get("below"), kind]))
        more["note"] = "\n".join(filter(None, [more.get("note"), f"{KINDS[kind].capitalize()}."]))
    note = "\n".join(filter(None, [exact_quantity(value, unit), more.pop("note", "")]))
    return HeadNumber(title, text, name, note=note, **more)


def head_numbers(run: Run, doubts: Mapping[str, Sequence[Finding]], *, has_steps: bool) -> list[HeadNumber]:
    """Return the main numbers of a run that are measured or stated."""
    found = [
        _step_time(run, doubts.get("step_time", ())) if has_steps else None,
        _throughput(run, [*doubts.get("samples", ()), *doubts.get("tokens", ())]) if has_steps else None,
        _utilisation(run, doubts.get("mfu", ())) if has_steps else None,
        _gpu_utilisation(run),
        _memory(run, doubts.get("memory", ())),
        _loss(run),
        _slowest(run),
    ]
    numbers = [number._replace(field=_field_of(run, number.title)) for number in found if number is not None]
    figures = run_figures(run)
    known = {number.title for number in numbers}
    figures = [(title, text) for title, text in figures if title not in known]
    numbers += [HeadNumber(title, text) for title, text in figures[: max(0, MAX_NUMBERS - len(numbers))]]
    return [_with_figure(run, number) for number in numbers] if run.source_id else numbers


_FIGURES = {
    "Step time": "step_time_s",
    "MFU": "mfu",
    "Compute": "flops_per_gpu",
    "Peak memory": "memory",
    "Loss": "loss",
}


_FIELDS = {
    "Step time": "step_time_s",
    "MFU": "mfu_pct",
    "Compute": "tflops_per_gpu",
    "GPU utilisation": "gpu_util_pct",
    "Peak memory": "memory_max_bytes",
}


def _rate_of(run: Run) -> str:
    """Return what a run's throughput is, of which it may have several."""
    known = (name for name in ("tokens_per_s", "samples_per_s") if getattr(run, name) is not None)
    return next(known, "tokens_per_s_per_gpu")


def _field_of(run: Run, title: str) -> str:
    if title != "Throughput":
        return _FIELDS.get(title, "")
    return "" if (rate := _rate_of(run)) == "tokens_per_s_per_gpu" else rate


def _with_figure(run: Run, number: HeadNumber) -> HeadNumber:
    figure = _rate_of(run) if number.title == "Throughput" else _FIGURES.get(number.title, number.title)
    return number._replace(figure=figure)


def _step_time(run: Run, doubts: Sequence[Finding]) -> HeadNumber | None:
    spread = step_time(run.summary)
    if spread is None:
        return None
    unit = unit_for([spread.median], "s")
    ends = [significant(end / unit.factor) for end in (spread.p10, spread.p90) if end is not None]
    below = DASH.join(ends) if len(set(ends)) > 1 else ""
    return _head_number(
        run, "Step time", spread.median, "s", field="step_time_s", below=below, note=_counted(run), doubts=doubts
    )


def _counted(run: Run) -> str:
    """Say which steps a step time is the median of."""
    steps = run.summary.get("steps") or {}
    if not steps.get("count"):
        basis = basis_in_words(str(run.summary.get("basis") or ""))
        return "" if "_" in basis else basis  # names of fields say nothing to a reader
    out = f"; {len(steps['left_out'])} left out: {steps.get('why')}" if steps.get("left_out") else ""
    return f"Median of {steps['count']} steps ({steps.get('first')} to {steps.get('last')}), of the slowest rank{out}."


def _throughput(run: Run, doubts: Sequence[Finding]) -> HeadNumber | None:
    rates = [(run.tokens_per_s, "tokens/s"), (run.samples_per_s, "samples/s")]
    known = [(value, unit) for value, unit in rates if value is not None]
    if not known:
        each = run.summary.get("tokens_per_s_per_gpu")
        return _head_number(run, "Throughput", each, "tokens/s", below="per GPU", doubts=doubts) if each else None
    digits = printed_digits(known[-1][0]) if run.prints("samples_per_s") else DIGITS
    below = quantity(*known[-1], digits) if len(known) > 1 else ""
    field = "tokens_per_s" if known[0][1] == "tokens/s" else "samples_per_s"
    return _head_number(run, "Throughput", *known[0], field=field, below=below, doubts=doubts)


def _utilisation(run: Run, doubts: Sequence[Finding]) -> HeadNumber | None:
    mfu, hfu, flops = share_pct(run.summary, "mfu"), share_pct(run.summary, "hfu"), compute(run.summary)
    formula = _formula(run)
    if mfu is not None:
        below = f"HFU {quantity(hfu, '%')}" if hfu is not None and hfu != mfu else ""
        below = below or ("" if measured_pct(run.summary, "mfu") is not None else "as stated")
        return _head_number(run, "MFU", mfu, "%", field="mfu_pct", below=below, note=formula, doubts=doubts)
    if flops is None:
        return None
    stated = "" if run.summary.get("flops_formula") else ", as stated"
    below = f"per device{stated}"
    return _head_number(
        run, "Compute", flops, "FLOP/s", field="tflops_per_gpu", below=below, note=formula, doubts=doubts
    )


def _gpu_utilisation(run: Run) -> HeadNumber | None:
    mean, measured = measured_pct(run.summary, "gpu_util"), run.summary.get("gpu_utilization") or {}
    if mean is None:
        return None
    below = f"{significant(measured.get('min'))}{DASH}{significant(measured.get('max'))}"
    return _head_number(run, "GPU utilisation", mean, "%", below=below, note="Mean of all GPUs over the timed steps.")


def _formula(run: Run) -> str:
    """Say how the FLOPs were counted, and what they are compared with."""
    formula = run.summary.get("flops_formula")
    if not formula:
        return ""
    achieved = compute(run.summary)
    rate = "" if achieved is None else f"{quantity(achieved, 'FLOP/s')} per device. "
    flops = quantity(run.summary.get("model_flops_per_iteration"), "FLOP")
    peak = peak_text(run.summary)
    share = f"\nMFU = this / (devices × step time × peak), peak {peak}." if peak else ""
    return f"{rate}Model FLOPs per step: {flops} = {formula}.{share}"


def _memory(run: Run, doubts: Sequence[Finding]) -> HeadNumber | None:
    if run.memory_max_bytes is None:
        return None
    memory = run.summary.get("memory_peak_bytes") or {}
    by_rank = memory.get("by_rank") or {}
    most = max(by_rank, key=lambda rank: by_rank[rank], default="")
    below = ", ".join(filter(None, [f"rank {most}" if most else "", memory.get("remark", "")]))
    return _head_number(run, "Peak memory", run.memory_max_bytes, "B", below=below, doubts=doubts)


def _loss(run: Run) -> HeadNumber | None:
    loss = run.summary.get("loss") or {}
    if loss.get("first") is None:
        return None
    last = loss.get("last")
    steps = (run.summary.get("steps") or {}).get("last")
    text = f"{significant(loss['first'])} → {'NaN' if last is None else significant(last)}"
    note = f"{loss['first']} to {'a value that is not finite' if last is None else last}"
    return HeadNumber("Loss", text, below=f"{steps} steps" if steps else "", note=note)


def _slowest(run: Run) -> HeadNumber | None:
    slowest = slowest_rank(run) or slowest_stage(run)
    if slowest is None or slowest.excess <= 0:
        return None
    place = slowest.place.partition(" on node ")[2] or slowest.place.removeprefix("node ")
    excess = f"+{significant(100 * slowest.excess, 2)}{SPACE}%"
    below = f"{place}, {excess}" if place else f"{excess} compute"
    note = f"{slowest.name} {slowest.work} longer than the others"
    return HeadNumber("Slowest rank", str(slowest.rank), below=below, note=note)


def facts_text(run: Run, attempt: Attempt | None, step: int | None, trials: int | None) -> str:
    """Return model, progress, duration and place: `GPT, 4 layers of 128 · 24 / 24 steps · 31 s · 2 ranks on vm`."""
    progress, place = _steps_text(run, step, trials), _place_text(run, attempt)
    return " · ".join(filter(None, [model_text(run.resolved), progress, _duration_text(run), place]))


def _steps_text(run: Run, step: int | None, trials: int | None) -> str:
    if trials is not None:  # a search has no known end
        return f"{trials} trials" if run.is_final else f"trial {trials}"
    if step is None:
        return ""
    if run.iterations >= step:
        return f"{step} / {run.iterations} steps"
    return f"{step} steps" if run.is_final else f"step {step}"


def _duration_text(run: Run) -> str:
    if run.started_at is None or run.origin in (Run.Origin.IMPORTED, Run.Origin.PUBLISHED):
        return ""
    return duration(((run.ended_at or timezone.now()) - run.started_at).total_seconds())


def _place_text(run: Run, attempt: Attempt | None) -> str:
    layout = rank_layout(run, attempt) if attempt is not None else None
    if layout is None or not layout.nodes:
        count = int(run.gpus) if run.gpus else 0
        return f"{count:,} GPU{'' if count == 1 else 's'}" if count else ""
    count = layout.ranks or int(run.gpus or 1)
    ranks = f"{count:,} rank{'' if count == 1 else 's'}"
    nodes = f"{len(layout.nodes)} nodes" if len(layout.nodes) > 1 else layout.nodes[0]
    return f"{ranks} on {nodes}"


def progress_of(run: Run, step: int | None, left_s: float | None) -> Progress | None:
    """Return the progress of a running run with a known end; None for a search, whose end is unknown."""
    if run.state != RunState.RUNNING or not run.iterations or step is None or step > run.iterations:
        return None
    percent = 100 * step // run.iterations
    return Progress(percent, "" if left_s is None or left_s < 1 else f"about {duration(left_s)} left")
