"""The numbers of an imported run are those of its series, with how they came about, on pages and in the API."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from numpy.typing import NDArray

from parlab.charts.format import DIGITS, SPACE, printed_digits, quantity
from parlab.client.server.experiments import flat_row
from parlab.demo.content import ready_sweeps
from parlab.demo.imported import published_documents
from parlab.demo.progress import progress
from parlab.fleet.services import launch
from parlab.formats.derivations import TOKENS_PER_STEP
from parlab.ingest.batches.events import Limits, parse
from parlab.ingest.files.imports import upload_import
from parlab.ingest.readings.results import PAGES
from parlab.ingest.summaries.attempt_summaries import attempt_summarise
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.records import run_records
from parlab.pages.rows.run_heads import head_numbers
from parlab.pages.rows.runs import headline, run_table
from parlab.reports.facts import numbers_of
from parlab.series import store
from parlab.series.columns import Columns
from runners.config import engine_of
from runners.wire.protocol import RunState
from tests.formats.golden import cases
from tests.ingest import output

from .test_experiments import text

pytestmark = pytest.mark.django_db

Bring = Callable[..., list[Run]]
SAMPLES = [path for path in cases() if path.suffix in (".log", ".txt", ".csv", ".jsonl")]
AVERAGES = "".join(f"step:{n}/200 train_loss:2.2 step_avg:{43.4 + n / 100:.2f}ms\n" for n in range(10, 60, 10))
PRINTED = "".join(f"step: {n} loss: 2.5 step time: {0.4 + n / 1000:.3f} s\n" for n in range(1, 20))


@pytest.fixture
def bring(user: User) -> Bring:
    """Import a text and return its runs."""

    def bring(data: bytes, name: str = "run.log") -> list[Run]:
        upload_import(experiment=None, name=name, stream=io.BytesIO(data), user=user)
        return list(Run.objects.order_by("pk"))

    return bring


def check(run: Run) -> bool:
    """Recompute the step time of a run from its series; return whether it has one."""
    summary: dict[str, Any] = run.summary
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    ranks = store.read_ranks(attempt.pk, "step_time_s") if attempt else {}
    if "step_time_s" not in summary or not ranks or run.kind_of("step_time_s") in ("part", "average"):
        return False
    left_out = set((summary.get("steps") or {}).get("left_out") or ())
    slowest: dict[int, float] = {}
    for columns in ranks.values():
        for step, value in zip(columns.steps.tolist(), columns.values.tolist(), strict=True):
            if step not in left_out and np.isfinite(value):
                slowest[step] = max(value, slowest.get(step, 0.0))
    median = float(np.median(list(slowest.values())))
    basis = str(summary.get("basis"))
    if "1 / printed steps per second" in basis:
        median = 1.0 / float(np.median(values_of(attempt, "steps_per_s")))
    elif "as an average since the start" in basis:
        steps, times = (np.array(part) for part in zip(*sorted(slowest.items()), strict=True))
        half = (len(steps) + len(left_out)) // 2 - len(left_out)
        median = float((steps[-1] * times[-1] - steps[half] * times[half]) / (steps[-1] - steps[half]))
    assert run.step_time_s == pytest.approx(median, rel=1e-6)
    shown = quantity(median, "s", printed_digits(run.step_time_s) if run.has_printed_numbers else DIGITS)
    assert headline(run).startswith("OOM" if run.state == "oom" else shown)
    assert next(number for number in head_numbers(run, {}, has_steps=True)).value == shown.partition(SPACE)[0]
    return True


def check_others(run: Run) -> int:
    """Recompute the memory and the loss of a run from its series; return how many of them it has."""
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    peaks = store.read_ranks(attempt.pk, "memory_peak_bytes") if attempt else {}
    by_rank = (run.summary.get("memory_peak_bytes") or {}).get("by_rank") or {}
    own = {rank: peaks[int(rank)].values for rank in by_rank if int(rank) in peaks}
    assert {rank: pytest.approx(float(np.nanmax(values))) for rank, values in own.items()} == {
        rank: by_rank[rank] for rank in own
    }
    losses = store.read_ranks(attempt.pk, "loss") if attempt else {}
    loss = run.summary.get("loss") or {}
    if losses and "last" in loss:
        finite = by_step(losses[min(losses)]).tolist()
        assert [loss["first"], loss["last"]] == [pytest.approx(finite[0]), pytest.approx(finite[-1])]
    return len(own) + bool(losses and "last" in loss)


def by_step(columns: Columns, *, last: bool = True) -> NDArray[np.float64]:
    """Return the last, or the first, finite value of each step: a step may be logged twice."""
    finite = np.isfinite(columns.values)
    order = np.argsort(columns.steps[finite], kind="stable")
    steps, values = columns.steps[finite][order], columns.values[finite][order]
    changes = steps[1:] != steps[:-1]
    return values[np.append(changes, True) if last else np.append(True, changes)] if len(values) else values


def ranks_of(attempt: Attempt | None, *names: str) -> list[Columns]:
    """Return the ranks of the first of these series that an attempt has."""
    found = [store.read_ranks(attempt.pk, name) for name in names] if attempt else []
    return next(([columns for _, columns in sorted(ranks.items())] for ranks in found if ranks), [])


def values_of(attempt: Attempt | None, *names: str) -> NDArray[np.float64]:
    """Return the value of each step of the first rank."""
    ranks = ranks_of(attempt, *names)
    return by_step(ranks[0]) if ranks else np.empty(0)


def is_mean(value: float, ranks: list[Columns], factor: float = 1.0) -> bool:
    """Return whether a headline is a printed value, or the mean of those of the steps with or without the warm-up.

    Of several ranks that print other values, each step has that of one of them.
    """
    every = np.concatenate([by_step(columns) for columns in ranks]) * factor if ranks else np.empty(0)
    if len(ranks) > 1:
        return bool(len(every)) and every.min() * (1 - 1e-9) <= value <= every.max() * (1 + 1e-9)
    means = [float(every[0]), float(every[-1])] if len(every) else []
    for columns in ranks:
        for own in (by_step(columns) * factor, by_step(columns, last=False) * factor, columns.values * factor):
            means += [float(part.mean()) for part in (own, own[1:], own[:-1], own[1:-1]) if len(part)]
            means += [float(each) for each in columns.values * factor] if len(columns) < 4 else []
    return any(value == pytest.approx(mean, rel=1e-6) for mean in means)


def growth(attempt: Attempt | None, name: str) -> float:
    """Return by how much a count grows in a step."""
    ranks = ranks_of(attempt, name)
    steps, values = (ranks[0].steps, ranks[0].values) if ranks else (np.empty(0), np.empty(0))
    return float((values[-1] - values[0]) / (steps[-1] - steps[0])) if len(steps) > 1 else 0.0


def is_rate(run: Run, attempt: Attempt | None, name: str) -> bool:
    """Return whether a throughput is what its kind says: printed, the last average, or what follows from others."""
    value, kind = getattr(run, name), run.kinds.get(name, "derived")
    if kind not in ("derived", "average") and is_mean(value, ranks_of(attempt, name)):
        return True
    if kind == "printed":
        return False
    per_sample = 1 if name == "samples_per_s" else run.resolved.get("model", {}).get("sequence_length") or 0
    found = [float(part[-1]) for part in [values_of(attempt, f"running_avg_{name}", f"average_{name}")] if len(part)]
    batch = run.resolved.get("train", {}).get("global_batch_size") or 0
    found += [batch * per_sample / run.step_time_s] if run.step_time_s else []
    # A batch that grows with the steps.
    batches, times = values_of(attempt, "samples"), run.summary.get("step_time_s") or {}
    seconds = times.get("mean_without_first") or times.get("mean")
    found += [float(part.mean()) * per_sample / seconds for part in (batches, batches[1:]) if len(part) and seconds]
    if name == "tokens_per_s":
        stated = [run.launch.get("arguments", {}).get(each) for each in TOKENS_PER_STEP]
        tokens = [float(each) for each in stated if each] + [*values_of(attempt, "tokens")[-1:]]
        tokens += [growth(attempt, "tokens_seen")]
        found += [tokens[0] / seconds] if seconds else []
        found += [run.samples_per_s * per_sample] if run.samples_per_s else []
        if is_mean(value, ranks_of(attempt, "tokens_per_s_per_gpu"), float(run.gpus or 0)):
            return True
    return any(value == pytest.approx(each, rel=1e-6) for each in found)


def check_rates(run: Run) -> int:
    """Recompute throughput, FLOP/s and MFU of a run from its series and settings; return how many of them it has."""
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    checked = 0
    for name in ("samples_per_s", "tokens_per_s"):
        if getattr(run, name) is not None and (run.kinds.get(name) != "printed" or ranks_of(attempt, name)):
            assert is_rate(run, attempt, name), (run, name, run.kinds)
            checked += 1
    summary = run.summary
    seconds = (summary.get("step_time_s") or {}).get("median") or (summary.get("step_time_s") or {}).get("mean")
    work = summary.get("model_flops_per_iteration")
    derived = work / seconds / run.gpus if work and seconds and run.gpus else None
    printed = ranks_of(attempt, "flops_per_gpu", "average_flops_per_gpu")
    if "tflops_per_gpu" in summary and run.source and (printed or derived):
        value = summary["tflops_per_gpu"] * 1e12
        assert is_mean(value, printed) or value == pytest.approx(derived), run
        checked += 1
    shares = [(ranks_of(attempt, "mfu_pct"), 1.0), (ranks_of(attempt, "mfu", "average_mfu"), 100.0)]
    medians = [float(np.median(columns.values)) * factor for ranks, factor in shares for columns in ranks]
    peak = (summary.get("peak") or {}).get("flops")
    if "mfu" in summary and derived and peak:
        assert summary["mfu"] == pytest.approx(derived / peak), run
        checked += 1
    elif "mfu_pct" in summary and medians:
        assert min(medians) * (1 - 1e-6) <= summary["mfu_pct"] <= max(medians) * (1 + 1e-6), run
        checked += 1
    return checked


FEW = SAMPLES[4::40]
PARTS = [FEW, *(pytest.param(SAMPLES[part::8], marks=pytest.mark.slow) for part in range(8))]


@pytest.mark.parametrize("samples", PARTS, ids=lambda samples: samples[0].parent.name)
def test_the_headlines_of_samples_follow_from_their_series(bring: Bring, samples: list[Path]) -> None:
    for path in samples:
        bring(path.read_bytes(), path.name)
    logs = [run for run in Run.objects.select_related("config") if run.source and run.source.format not in PAGES]
    assert sum(map(check, logs)) > len(samples) // 5
    assert sum(map(check_others, logs)) > len(samples) // 5
    assert sum(map(check_rates, logs)) > len(samples) // 5


def test_the_headlines_of_the_published_runs_of_the_demo_follow_from_what_they_state(user: User) -> None:
    published_documents(user)
    runs = list(Run.objects.select_related("experiment").filter(origin=Run.Origin.IMPORTED))
    assert len(runs) > 20
    for run in runs:
        batch = run.resolved.get("train", {}).get("global_batch_size")
        if run.kinds.get("samples_per_s") == "derived" and run.step_time_s and batch:
            assert run.samples_per_s == pytest.approx(batch / run.step_time_s), run
        numbers = [number.value for number in head_numbers(run, {}, has_steps=True)]
        for name, unit in (("step_time_s", "s"), ("tokens_per_s", "tokens/s"), ("memory_max_bytes", "B")):
            value = getattr(run, name)
            if value is not None:
                digits = printed_digits(value, unit) if run.prints(name) else DIGITS
                assert quantity(value, unit, digits).partition(SPACE)[0] in numbers, (run, name)
    assert any("derived" in run.kinds.values() for run in runs)


def test_the_headlines_of_the_sweeps_of_the_demo_follow_from_their_series(user: User) -> None:
    ready_sweeps(user)
    for sweep in progress().sweeps:
        launch(config=sweep.experiment.configs.get(), user=user)
    runs = [run for run in Run.objects.filter(origin=Run.Origin.MEASURED) if engine_of(run.resolved).has_steps]
    assert len({run.experiment_id for run in runs}) > 5
    for place, queued in enumerate(runs):
        attempt = queued.attempts.get()
        # No two steps and no two runs take equally long.
        lines = (
            output.step(
                number, rank=rank, warmup=number == 1, step_time_s=0.5 + rank / 8 + number * place / 1000,
                memory_peak_bytes=2**20 * (1 + rank + place), loss=9.0 - number / 8,
            )
            for number in range(1, 9)
            for rank in range(2)
        )  # fmt: skip
        store.append(attempt.pk, parse(b"".join(lines), limits=Limits(2)).series)
        Attempt.objects.filter(pk=attempt.pk).update(state=RunState.FINISHED, last_step=8)
        Run.objects.filter(pk=queued.pk).update(state=RunState.FINISHED)
        attempt_summarise(attempt=Attempt.objects.get(pk=attempt.pk))
        run = Run.objects.get(pk=queued.pk)
        assert check(run), run
        assert check_others(run) == 3, run  # the memory of two ranks, and the loss
        assert check_rates(run) >= 1 or engine_of(run.resolved).is_external, run


def test_an_average_is_shown_and_marked_as_one_everywhere(bring: Bring, page: Client) -> None:
    (run,) = bring(AVERAGES.encode(), "average.log")
    assert run.kind_of("step_time_s") == "average"
    assert headline(run).endswith("average since the start")
    (number, *_) = head_numbers(run, {}, has_steps=True)
    assert "average" in number.below
    assert "Average since the start." in number.note
    assert "average" in text(page.get(run.get_absolute_url()))
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/").json()
    kinds = answer["results"][0]["kinds"]
    assert kinds["step_time_s"] == "average"
    assert {name for name in kinds if answer["results"][0].get(name) is None} == set()
    assert flat_row(answer["results"][0])["kinds.step_time_s"] == "average"
    facts = {fact.field: fact.text for fact in numbers_of(run_records([run])[0])}
    assert facts["step_time_s"].endswith(", average")


def test_a_peak_says_of_which_steps_and_gpus_it_is(bring: Bring) -> None:
    step = " iteration {n:8d}/ 20 | elapsed time per iteration (ms): 500.0 | lm loss: 2.5 |\n"
    memory = "[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.5 | max allocated: 200.5 | reserved: 300.0\n"
    lines = [step.format(n=n) + memory * (n == 10) for n in range(5, 25, 5)]
    (run,) = bring("".join(["torchrun --nproc_per_node 8 pretrain.py --micro-batch-size 1\n", *lines]).encode())
    (peak,) = (number for number in head_numbers(run, {}, has_steps=True) if number.title == "Peak memory")
    assert peak.below == "rank 0, printed last after step 10 of 20, of 1 of 8 GPUs"


def test_a_number_that_a_file_prints_is_called_printed(bring: Bring, page: Client) -> None:
    (run,) = bring(PRINTED.encode(), "printed.log")
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/").json()
    assert answer["results"][0]["kinds"]["step_time_s"] == "printed"
    assert page.get(run.get_absolute_url().replace("/experiments/", "/api/experiments/")).json()["kinds"] == run.kinds


def test_a_speed_in_a_unit_of_the_file_is_the_headline_under_its_printed_name(bring: Bring) -> None:
    page = "# Results\n\n- batch size = 2\n- avg_step_fps = 2.59\n"
    runs = bring(page.encode(), "results.md")
    assert [headline(run) for run in runs] == ["avg_step_fps 2.59"]


def test_the_speed_of_a_table_is_among_its_first_columns(bring: Bring, page: Client) -> None:
    table = "| Model | Layers | Hidden | TFlops/GPU | TFlops Aggreg |\n| --- | --: | --: | --: | --: |\n"
    rows = "".join(f"| {n}B | {24 + n} | {1024 * n} | {130 + n} | {4.4 * n} |\n" for n in range(1, 6))
    runs = bring(f"# Paper\n\n{table}{rows}".encode(), "paper.md")
    assert headline(runs[0]).startswith("TFlops")
    titles = [column.title for column in run_table(runs, waiting={}).columns]
    assert next(title for title in titles if title != "Ranks").startswith("TFlops/GPU"), titles


def test_lists_show_a_speed_in_a_unit_of_the_file_under_its_printed_name(bring: Bring, page: Client) -> None:
    (run,) = bring(b"# Results\n\n- batch size = 2\n- avg_step_fps = 2.59\n", "results.md")
    for url in ("/", "/experiments/", run.experiment.get_absolute_url()):
        assert re.search(r"2\.59\s+avg_step_fps", text(page.get(url))), url
