"""The answer to the question of an experiment: to that question, like with like, and never surer than its noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parlab.lab.models import AdviceTrial, Config, Experiment, Run
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.surroundings import Surroundings
from parlab.publishing.answers.answer import Answer
from parlab.publishing.answers.experiment_answer import answer_of, case_of
from tests.conftest import SMALL

pytestmark = pytest.mark.django_db

Rows = list[tuple[dict[str, Any], float | None, dict[str, Any]]]
"""Points, samples/s, and further fields of the runs."""


@pytest.fixture
def answered(experiment: Experiment, make_config: Callable[..., Config]) -> Callable[..., Answer]:
    """Ask a question about runs, given as (point, samples/s, further fields of the run)."""

    def make(question: str, rows: Rows) -> Answer:
        Experiment.objects.filter(pk=experiment.pk).update(question=question)
        experiment.refresh_from_db()
        config = make_config()
        for number, (point, speed, more) in enumerate(rows, 1):
            spread = more.pop("spread", 0.02)
            time_s = 4 / speed if speed else None
            steps = {"median": time_s, "p10": time_s * (1 - spread), "p90": time_s * (1 + spread)} if time_s else None
            values = {
                "state": "finished", "samples_per_s": speed, "resolved": SMALL, "created_by": experiment.owner,
                "summary": {"step_time_s": steps} if steps else {}, **more,
            }  # fmt: skip
            Run.objects.create(
                experiment=experiment, config=config, number=number, point=point, point_digest=str(number), **values
            )
        return answer_of(case_of(experiment, list(experiment.runs.order_by("number"))))

    return make


def schedule(name: str, micro_batch: int) -> dict[str, Any]:
    return {"parallel.schedule": name, "train.micro_batch_size": micro_batch}


NINE: Rows = [
    (schedule("gpipe", 1), 60.0, {}), (schedule("gpipe", 2), 68.0, {}),
    (schedule("1f1b", 1), 64.0, {}), (schedule("1f1b", 2), 138.0, {}),
    (schedule("zb-h1", 1), 99.0, {}), (schedule("zb-h1", 2), 124.0, {}),
]  # fmt: skip


def copies(rows: Rows, **more: Any) -> Rows:
    return [(point, speed, {**extra, **more}) for point, speed, extra in rows]


def test_a_question_of_a_against_b_is_answered_with_yes_or_no(answered: Callable[..., Answer]) -> None:
    answer = answered("Is 1F1B faster than GPipe, and which micro batch is best?", copies(NINE))
    assert answer.verdict == "Yes: 1F1B with micro batch 2, 138\u202fsamples/s, 2.0\u202f× the best GPipe."
    assert answer.rest == ("ZB-H1 is 10\u202f% behind.", "One run each, whose steps vary by ±2.0\u202f%.")
    assert str(answer.short) == "1F1B, micro batch 2: 2.0\u202f× GPipe"
    assert not answer.noise


def test_the_other_way_round_is_answered_with_no(answered: Callable[..., Answer]) -> None:
    assert answered("Is GPipe faster than 1F1B?", copies(NINE)).verdict.startswith("No: 1F1B with micro batch 2")


def test_a_runner_up_within_noise_is_said_and_repeats_are_offered(answered: Callable[..., Answer]) -> None:
    answer = answered("Is 1F1B faster than GPipe?", copies(NINE, spread=0.22))
    assert answer.noise == "within noise ±22\u202f%"
    assert not answer.is_lead_unsure
    assert answer.action is not None
    assert answer.action.kind == "repeat"


def test_a_difference_within_noise_is_not_proven(answered: Callable[..., Answer]) -> None:
    rows: Rows = [({"parallel.schedule": "gpipe"}, 100.0, {}), ({"parallel.schedule": "1f1b"}, 104.0, {})]
    answer = answered("Is 1F1B faster than GPipe?", copies(rows, spread=0.1))
    assert answer.verdict.startswith("Not proven: 1F1B")
    assert answer.tone == "plain"
    assert answer.is_lead_unsure


@pytest.mark.parametrize(
    ("speed", "words"),
    [(100.057, "no measurable difference from GPipe"), (104.2, "4\u202f% faster than GPipe")],
)
def test_a_difference_within_noise_has_one_digit_at_most(
    answered: Callable[..., Answer], speed: float, words: str
) -> None:
    rows: Rows = [({"parallel.schedule": "gpipe"}, 100.0, {}), ({"parallel.schedule": "1f1b"}, speed, {})]
    assert words in answered("Is 1F1B faster than GPipe?", copies(rows, spread=0.1)).verdict


def test_how_much_slower_is_answered_by_a_ratio(answered: Callable[..., Answer]) -> None:
    rows: Rows = [({"parallel.zero_stage": 0}, 42.0, {}), ({"parallel.zero_stage": 3}, 22.0, {})]
    answer = answered("How much slower is training when everything is partitioned?", rows)
    assert str(answer.short) == "Stage 0: 1.9\u202f× stage 3"


def gpus(count: int) -> dict[str, Any]:
    return {"origin": "imported", "launch": {"world_size": count}}


def test_scaling_names_where_it_ends_and_compares_per_gpu(answered: Callable[..., Answer]) -> None:
    rows: Rows = [({"x": count}, speed, gpus(count)) for count, speed in ((1, 10.0), (2, 18.0), (8, 32.0))]
    answer = answered("How does the throughput scale?", rows)
    assert answer.verdict == "Scales to 2 GPUs, then 40\u202f% efficiency at 8 GPUs against 1 GPU."
    assert answer.tone == "warn"


def test_scaling_starts_where_the_figure_starts_and_leaves_out_other_layouts(answered: Callable[..., Answer]) -> None:
    of_eight = {**SMALL, "parallel": {**SMALL["parallel"], "tensor_parallel_size": 8, "pipeline_parallel_size": 1}}
    alone = {**SMALL, "parallel": {**SMALL["parallel"], "tensor_parallel_size": 1, "pipeline_parallel_size": 1}}
    rows: Rows = [
        ({}, 20.0, {**gpus(1), "resolved": alone}),
        *(({}, speed, {**gpus(count), "resolved": of_eight}) for count, speed in ((8, 80.0), (16, 150.0), (64, 240.0))),
    ]
    answer = answered("How does the throughput scale?", rows)
    assert answer.verdict == "Scales to 16 GPUs, then 38\u202f% efficiency at 64 GPUs against 8 GPUs."
    assert "run 1 is TP 1, PP 1, the others are TP 8, PP 1" in answer.rest[1]


def test_what_is_best_is_best_per_gpu_where_numbers_of_gpus_differ(answered: Callable[..., Answer]) -> None:
    rows: Rows = [({"x": "small"}, 10.0, gpus(1)), ({"x": "large"}, 32.0, gpus(8))]
    answer = answered("Which is best?", rows)
    assert answer.best is not None
    assert answer.best.number == 1
    assert "per GPU" in answer.verdict


def test_a_setting_that_does_not_fit_is_named(answered: Callable[..., Answer]) -> None:
    limited = {**SMALL, "launcher": {"memory_limit_mib": 2048}}
    size = "train.micro_batch_size"
    rows: Rows = [({size: 4}, 29.3, {}), ({size: 8192}, None, {"state": "oom", "resolved": limited})]
    answer = answered("Does a micro batch of 8,192 fit into 2 GiB?", rows)
    assert answer.verdict == "Micro batch 8,192 does not fit 2\u202fGiB."
    assert answer.rest == ("Micro batch 4 fits and reaches 29.3\u202fsamples/s.",)


def test_which_change_makes_it_faster_is_answered_by_what_was_tried(
    answered: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch, experiment: Experiment
) -> None:
    timers = {"forward-compute": {"median": 0.02, "min": 0.02, "max": 0.02, "by_rank": {"0": 0.02}}}
    rows: Rows = [({"train.recompute": "full"}, 10.0, {}), ({"train.recompute": "none"}, 12.5, {})]
    answered("Where does the time go, and which change makes it faster?", rows)
    for run in experiment.runs.all():
        run.summary = {**run.summary, "timers_s": timers}
        run.step_time_s = run.summary["step_time_s"]["median"]
        run.launch = {"world_size": 2}
        run.save()
    before, after = experiment.runs.order_by("number")
    AdviceTrial.objects.create(
        run=before, changed_run=after, kind="recompute", title="Recompute none", gain=0.14, low=0.08, high=0.19,
        changes={"train.recompute": "none"}, created_by=experiment.owner,
    )  # fmt: skip
    answer = answer_of(case_of(experiment, list(experiment.runs.order_by("number"))))
    assert answer.verdict == "No recomputation saves 20\u202f% of the step."
    assert answer.best == after


def test_compute_is_no_loss_however_long_it_is(answered: Callable[..., Answer], experiment: Experiment) -> None:
    def timer(seconds: float) -> dict[str, Any]:
        return {"median": seconds, "min": seconds, "max": seconds, "by_rank": {"0": seconds}}

    answered("Where does the time go?", [({"train.recompute": "full"}, 10.0, {})])
    run = experiment.runs.get()
    run.summary = {**run.summary, "timers_s": {"forward-compute": timer(0.25), "optimizer": timer(0.1)}}
    run.step_time_s = run.summary["step_time_s"]["median"]
    run.launch = {"world_size": 1}
    run.save()
    answer = answer_of(case_of(experiment, list(experiment.runs.all())))
    assert answer.verdict == "The largest loss is optimizer, 25\u202f% of 400\u202fms a step."


def test_a_slow_network_is_priced_for_each_schedule(answered: Callable[..., Answer]) -> None:
    def on(name: str, network: str) -> dict[str, Any]:
        return {"parallel.schedule": name, "network": network}

    rows: Rows = [
        (on("gpipe", "default"), 10.0, {}), (on("gpipe", "delay 10ms"), 8.0, {}),
        (on("1f1b", "default"), 11.0, {}), (on("1f1b", "delay 10ms"), 6.4, {}),
    ]  # fmt: skip
    answer = answered("How much does a slow network slow down GPipe and 1F1B?", rows)
    assert answer.verdict == "Delay 10ms costs 1F1B 72\u202f% and GPipe 25\u202f%."


def test_days_that_differ_are_compared_with_equal_settings(answered: Callable[..., Answer]) -> None:
    rows: Rows = [({"day": "05-25"}, 4.6, {}), ({"day": "05-27"}, 8.2, {})]
    answer = answered("How much does the result vary from day to day?", rows)
    assert str(answer.short) == "Two days differ by 1.8\u202f×"


@pytest.mark.parametrize(
    ("state", "text"), [("failed", "failed: out of disk"), ("oom", "ran out of memory"), ("lost", "was lost")]
)
def test_without_a_number_the_reason_is_the_answer(answered: Callable[..., Answer], state: str, text: str) -> None:
    answer = answered("Is it fast?", [({}, None, {"state": state, "reason": "out of disk"})])
    assert text in answer.verdict
    assert answer.tone == "bad"


def test_runs_on_their_way_are_counted(answered: Callable[..., Answer]) -> None:
    answer = answered("Which is best?", [({"x": 1}, 10.0, {}), ({"x": 2}, None, {"state": "running"})])
    assert "1 of 2 runs are done." in answer.rest
    assert not answer.is_final
    assert answer.action is None


def test_nothing_has_run_yet(experiment: Experiment) -> None:
    answer = answer_of(case_of(experiment, []))
    assert answer.verdict == "No answer yet: nothing has run."
    assert answer.action is not None
    assert answer.action.kind == "launch"


def test_a_published_number_keeps_its_digits(answered: Callable[..., Answer]) -> None:
    answer = answered("How fast is it?", [({}, 112.345, {"origin": "published"})])
    assert answer.key == "112.345\u202fsamples/s"


def test_names_hold_only_what_differs(answered: Callable[..., Answer], experiment: Experiment) -> None:
    answered("Which is best?", copies(NINE))
    known = list(identities(list(experiment.runs.order_by("number"))).values())
    assert [identity.name for identity in known[:3]] == ["gpipe · mb 1", "gpipe · mb 2", "1f1b · mb 1"]
    # GPipe is blue, 1F1B vermillion, ZB-H1 green on every page; the micro batch changes dash and mark.
    assert [identity.look.colour for identity in known] == [1, 1, 2, 2, 3, 3]
    assert [identity.look.shape for identity in known] == [0, 1, 0, 1, 0, 1]


def test_layouts_are_named_by_their_sizes_beyond_one(answered: Callable[..., Answer], experiment: Experiment) -> None:
    def layout(tensor: int, pipeline: int) -> dict[str, Any]:
        return {"parallel.tensor_parallel_size": tensor, "parallel.pipeline_parallel_size": pipeline}

    answered("Which is best?", [(layout(1, 1), 10.0, {}), (layout(2, 1), 20.0, {}), (layout(2, 2), 30.0, {})])
    names = [identity.name for identity in identities(list(experiment.runs.order_by("number"))).values()]
    assert names == ["1 rank", "TP 2", "TP 2 · PP 2"]


def test_equal_runs_are_told_apart_by_their_number(answered: Callable[..., Answer], experiment: Experiment) -> None:
    answered("Is it stable?", [({}, 10.0, {}), ({}, 10.0, {})])
    assert [identity.name for identity in identities(list(experiment.runs.all())).values()] == ["#1", "#2"]


def test_runs_of_unlike_nodes_are_said_to_be_so(answered: Callable[..., Answer], experiment: Experiment) -> None:
    answered("Which is best?", copies(NINE))
    runs = list(experiment.runs.order_by("number"))
    places = {run.pk: Surroundings(nodes=f"node-{run.number % 2}") for run in runs}
    assert "The runs differ in nodes." in answer_of(case_of(experiment, runs), places).rest
    assert "The runs differ" not in " ".join(answer_of(case_of(experiment, runs)).rest)


def test_a_third_kind_that_is_faster_than_both_is_said_to_be_so(answered: Callable[..., Answer]) -> None:
    rows = [row for row in NINE if row[0] != schedule("zb-h1", 2)] + [(schedule("zb-h1", 2), 160.0, {})]
    answer = answered("Is 1F1B faster than GPipe?", copies(rows))
    assert answer.verdict.startswith("Yes: 1F1B with micro batch 2")
    assert answer.rest[0] == "ZB-H1 is 16\u202f% faster."


def test_runs_of_several_commits_are_told_apart_by_the_commit(answered: Callable[..., Answer]) -> None:
    def at(commit: str) -> dict[str, Any]:
        argv = ["python", "/a/long/path/train.py", "--commit", commit]
        return {**gpus(1), "resolved": {**SMALL, "command": {"argv": argv}}}

    rows: Rows = [({}, 10.0, at("5969ed973e8220504ed0")), ({}, 40.0, at("02aa11bb7c5509d11f3a"))]
    answer = answered("Which is best?", rows)
    assert answer.verdict.startswith("Commit 02aa11b, ")
    assert "train.py" not in f"{answer.verdict} {answer.short}"
