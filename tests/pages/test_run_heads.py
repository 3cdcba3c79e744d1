"""The head of a run's page: numbers, the step as a bar with advice on it, what went wrong; budgets of words."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from django.test import Client

from parlab.lab.models import AdviceTrial, Attempt, Config, Experiment, Run
from parlab.lab.selectors.analysis.advice import run_advice
from parlab.series import store
from parlab.series.columns import Columns
from runners.config import digest

from .conftest import finish
from .test_experiments import EXPERIMENT, text
from .test_waterfalls import with_timers

pytestmark = pytest.mark.django_db
RUN = f"{EXPERIMENT}runs/1/"
WORDS, CONTROLS = 130, 20


def main_of(page: Client, url: str) -> str:
    """Return the visible part of a page without tables and figures."""
    content = page.get(url).content.decode().partition("<main")[2].partition("</main>")[0]
    for hidden in ("table", "figure", "svg", "noscript"):
        content = re.sub(rf"<{hidden}\b.*?</{hidden}>", " ", content, flags=re.DOTALL)
    for hidden in ("pop", "phone", "term-note", "terms", "unseen"):
        content = re.sub(rf'<(\w+) class="{hidden}\b[^>]*>.*?</\1>', " ", content, flags=re.DOTALL)
    return content


def test_the_parts_of_the_bar_add_up_to_the_step_as_written(page: Client, four_runs: list[Run]) -> None:
    with_timers(four_runs[0], 0.123456789)
    step = page.get(RUN).context["step"]
    assert step.total.startswith("123")
    label = re.search(r'aria-label="#1: 123\Wms = ([^"]+)"', step.bar)
    assert label is not None
    assert sum(int(part.rpartition(" ")[2].replace("\N{MINUS SIGN}", "-")) for part in label[1].split(", ")) == 123
    useful, lost = (int(number) for number in re.findall(r"\d+", step.useful))
    assert useful + lost == 123
    assert step.noise == "±15\N{NARROW NO-BREAK SPACE}%"


def test_a_number_of_a_file_says_in_words_what_it_was_computed_from(page: Client, four_runs: list[Run]) -> None:
    basis = "step_time_s: 9 records; mean_without_first excludes the first as warm-up"
    Run.objects.filter(pk=four_runs[0].pk).update(summary={"step_time_s": {"median": 0.5}, "basis": basis})
    content = page.get(RUN).content.decode()
    assert "Step time: 9 records; the mean leaves out the first as warm-up" in content
    assert "mean_without_first" not in content


def test_advice_is_a_chip_and_after_a_click_its_result(page: Client, slow_run: Run) -> None:
    url = slow_run.get_absolute_url()
    chip = next(chip for chip in page.get(url).context["step"].chips if chip.text == "Recomputation none")
    assert (chip.kind, chip.part) == ("try", "compute")
    assert f'aria-label="Try: {chip.title}"' in page.get(url).content.decode()
    page.post(f"{url}advice/try/", {"title": chip.title})
    running = next(chip for chip in page.get(url).context["step"].chips if chip.text == "Recomputation none")
    assert (running.kind, running.realised) == ("running", "queued")
    changed = AdviceTrial.objects.get().changed_run
    summary = {**slow_run.summary, "step_time_s": {"median": 0.4}}
    Run.objects.filter(pk=changed.pk).update(state="finished", step_time_s=0.4, summary=summary)
    step = page.get(url).context["step"]
    done = next(chip for chip in step.chips if chip.text == "Recomputation none")
    assert (done.kind, done.realised) == ("done", "\N{MINUS SIGN}20\N{NARROW NO-BREAK SPACE}%")
    assert done.href == changed.get_absolute_url()
    assert f"#{changed.number} · recompute none" in step.tried
    assert "#1 · recompute full" in step.bar
    noisy = {**summary, "step_time_s": {"median": 0.4, "p10": 0.3, "p90": 0.5}}
    Run.objects.filter(pk=changed.pk).update(summary=noisy, samples_per_s=10.0)
    question = "Where does the time go, and which change makes it faster?"
    Experiment.objects.filter(pk=slow_run.experiment_id).update(question=question)
    step = page.get(url).context["step"]
    unsure = next(chip for chip in step.chips if chip.text == "Recomputation none")
    assert (unsure.kind, unsure.noise) == ("unsure", "within noise ±25\N{NARROW NO-BREAK SPACE}%")
    assert 'class="unsure"' in step.tried
    answer = page.get(slow_run.experiment.get_absolute_url()).context["answer"]
    assert answer.is_lead_unsure
    assert answer.noise == unsure.noise  # one judgement on all pages
    Run.objects.filter(pk=changed.pk).update(state="oom", step_time_s=None)
    assert next(chip for chip in page.get(url).context["step"].chips if chip.kind == "worse").realised == "OOM"


def test_advice_that_the_sweep_has_measured_is_shown_with_what_it_brought(page: Client, slow_run: Run) -> None:
    advised = next(row for row in run_advice(slow_run).advice if row.title.startswith("Recomputation none"))
    (field,) = advised.settings
    section, _, name = field.partition(".")
    slow_run.point = {field: slow_run.resolved[section][name]}
    slow_run.point_digest = digest(slow_run.point)
    slow_run.save()
    other = Run.objects.get(pk=slow_run.pk)
    other.pk, other.number, other.point, other.step_time_s = None, 7, dict(advised.settings), 0.4
    other.point_digest, other.summary = digest(other.point), {**other.summary, "step_time_s": {"median": 0.4}}
    other.save()
    step = page.get(slow_run.get_absolute_url()).context["step"]
    chip = next(chip for chip in step.chips if chip.text == "Recomputation none")
    assert (chip.kind, chip.href) == ("done", other.get_absolute_url())
    assert chip.realised == "\N{MINUS SIGN}20\N{NARROW NO-BREAK SPACE}%"
    assert not AdviceTrial.objects.exists()


def test_viewers_see_advice_without_a_button(viewer: Client, slow_run: Run) -> None:
    content = viewer.get(slow_run.get_absolute_url()).content.decode()
    assert "Recomputation none" in content
    assert "advice/try/" not in content


def test_a_run_out_of_memory_says_where_and_what_to_do_instead_of_its_step(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    run = finish(make_attempt(), state="oom")
    resolved = {**run.resolved, "train": {**run.resolved["train"], "micro_batch_size": 8}}
    reason = "out of memory on rank 3 in forward: requested 2 GiB"
    Run.objects.filter(pk=run.pk).update(reason=reason, resolved=resolved)
    shown = text(page.get(RUN))
    assert "Out of memory rank 3, after step 4 in forward: requested 2 GiB" in shown
    assert "Lower the micro batch of 8" in shown
    assert page.get(RUN).context["step"] is None


def test_a_loss_that_is_not_finite_is_a_problem_with_its_step(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    run = finish(make_attempt())
    loss = {"first": 6.9, "not_finite": 3, "first_not_finite": 2}
    Run.objects.filter(pk=run.pk).update(summary={**run.summary, "loss": loss}, loss_mark="nan")
    response = page.get(RUN)
    assert "Loss is NaN from step 2 3 values of the loss are not finite." in text(response)
    assert "Loss 6.90 → NaN" in text(response)
    assert response.context["step"] is None


def test_a_search_counts_its_trials_and_names_no_end(
    page: Client, make_attempt: Callable[..., Attempt], make_config: Callable[..., Config]
) -> None:
    config = make_config(data={"parallel": {"engine": "capacity", "data_parallel_size": 1}})
    attempt = make_attempt(config=config, state="running")
    trials = np.array([1, 2, 3])
    values = {"num_layers": np.array([1.0, 2.0, 4.0]), "fits": np.array([1.0, 1.0, 0.0])}
    store.append(attempt.pk, {(name, 0): Columns(trials, trials + 1e9, column) for name, column in values.items()})
    Attempt.objects.filter(pk=attempt.pk).update(last_step=3)
    response = page.get(RUN)
    assert "trial 3" in text(response)
    assert "left" not in text(response).partition("Charts")[0]
    assert "%" not in response.content.decode().partition("</title>")[0].rpartition("<title>")[2]


@pytest.mark.parametrize("tab", ["", "time/", "ranks/", "system/", "log/", "details/"])
def test_each_tab_has_an_address_and_marks_itself(page: Client, four_runs: list[Run], tab: str) -> None:
    content = page.get(f"{RUN}{tab}").content.decode()
    [current] = re.findall(r'<a href="([^"]+)" class="on" aria-current="page">\w+</a>', content.partition("<main")[2])
    assert current == f"{RUN}{tab}"
    assert "mean_without_first" not in content
    assert "why_not" not in content


def test_the_first_tab_keeps_its_budget(page: Client, slow_run: Run) -> None:
    shown = main_of(page, slow_run.get_absolute_url())
    assert len(re.findall(r"[A-Za-z]{2,}", re.sub(r"<[^>]+>", " ", shown))) <= WORDS
    # What a number offers is shown while the pointer or the keyboard is on it.
    shown = re.sub(r'<button type="button" class="to-board".*?</button>', "", shown)
    assert len(re.findall(r'<(?:a|button|select|summary)\b|<input (?!type="hidden")', shown)) <= CONTROLS
