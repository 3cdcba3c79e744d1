"""Waterfalls: their terms add up exactly, whatever the timers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.advice.waterfalls.measured import Rate, Step, timers_of, waterfall_of
from parlab.advice.waterfalls.predicted import predicted_waterfall
from parlab.advice.waterfalls.terms import TERMS
from parlab.advice.waterfalls.timers import Timer
from parlab.advice.waterfalls.traced import TracedStep
from parlab.advice.waterfalls.waterfall import NS, Waterfall, assembled, difference, rounded
from parlab.planner import Job, Model, cluster, predict_job
from parlab.planner.prediction.timing import Timing

PEAK, CEILING = Rate(100e12, "data sheet"), Rate(80e12, "measured ceiling", is_measured=True)


def by_rank(*seconds: float) -> dict[str, object]:
    ranks = {str(rank): value for rank, value in enumerate(seconds)}
    return {"median": sum(seconds) / len(seconds), "min": min(seconds), "max": max(seconds), "by_rank": ranks}


def ms(waterfall: Waterfall) -> dict[str, float]:
    return {part.key: part.ns / 1e6 for part in waterfall.parts}


def test_compute_is_split_by_flops_and_the_planner() -> None:
    parts = Timing(0.3, 0, 0.04, 0, 0.01, 0, 0, 0, 0, 0)
    step = Step(
        "Run 1",
        0.5,
        2,
        timers_of({"forward-compute": by_rank(0.1, 0.1), "backward-compute": by_rank(0.3, 0.3),
                   "optimizer": by_rank(0.05, 0.05), "optimizer-clip-main-grad": by_rank(0.02, 0.02)}),
        model_flops=2 * 16e12,
        executed_flops=2 * 16e12 * 4 / 3,
        peak=PEAK,
        ceiling=CEILING,
        predicted=parts,
    )  # fmt: skip
    waterfall = waterfall_of(step)
    assert ms(waterfall) == {
        "ideal": 160.0,
        "matrix_rate": 40.0,
        "kernels": 50.0,  # 400 of the passes - 200 - 100 - 40 - 10
        "recompute": 100.0,  # the forward pass runs again
        "tensor": 40.0,
        "expert": 10.0,
        "optimizer": 50.0,
        "unexplained": 50.0,
    }
    kinds = {part.key: part.kind for part in waterfall.parts}
    assert (kinds["ideal"], kinds["kernels"], kinds["optimizer"]) == ("computed", "derived", "measured")
    assert "optimizer-clip-main-grad" in waterfall.notes[0]
    assert [part.key for part in waterfall.parts] == [key for key in TERMS if key in kinds]


def test_waits_of_a_pipeline_are_bubble_slower_stages_and_transfers() -> None:
    timers = {
        "forward-compute": by_rank(0.2, 0.3),
        "backward-compute": by_rank(0.4, 0.5),
        "backward-recv": by_rank(0.36),
    }
    # A stage without a timer spends no time in it: rank 0 waits for gradients, rank 1 for activations.
    timers["backward-recv"]["by_rank"] = {"0": 0.38}
    timers["forward-recv"] = {"median": 0.2, "min": 0.2, "max": 0.2, "by_rank": {"1": 0.2}}
    step = Step("Run 1", 1.05, 2, timers_of(timers), stages=2, micro_batches=7, schedule="1f1b")
    waterfall = waterfall_of(step)
    assert ms(waterfall) == {
        "compute": 700.0,
        "bubble": 100.0,  # 700 x (2 - 1) / 7
        "straggler": 100.0,  # stage 1 computes 800, the mean is 700
        "pipeline": 90.0,  # the rest of a mean wait of 290
        "unexplained": 60.0,
    }
    assert dict(waterfall.absent)["ideal"] == "the peak of the device is unknown"


def test_the_rank_that_arrives_last_at_a_collective_waits_for_nobody() -> None:
    timers = {"forward-compute": by_rank(0.2, 0.5), "backward-params-all-reduce": by_rank(0.4, 0.1)}
    waterfall = waterfall_of(Step("Run 1", 0.6, 2, timers_of(timers)))
    assert ms(waterfall) == {"compute": 350.0, "data": 100.0, "straggler": 150.0, "unexplained": 0.0}


def test_a_rank_that_spends_no_time_counts_in_the_mean_of_all_ranks() -> None:
    assert timers_of({"optimizer": by_rank(0.0, 0.2, 0.4)})["optimizer"].mean == pytest.approx(0.2)


def test_logs_that_print_a_range_over_the_ranks_use_its_middle() -> None:
    timers = timers_of({"forward-backward": {"median": 0.6, "min": 0.4, "max": 0.6, "by_rank": {"0": 0.6}}})
    waterfall = waterfall_of(Step("Run 1", 0.6, 8, timers, stages=4, micro_batches=12))
    assert ms(waterfall) == {"compute": 400.0, "bubble": 100.0, "unexplained": 100.0}


def test_deepspeeds_timers_of_micro_batches_count_for_all_of_them() -> None:
    timers = {
        "fwd_microstep": by_rank(0.01),
        "bwd_microstep": by_rank(0.05),
        "bwd_inner_microstep": by_rank(0.02),
        "bwd_allreduce_microstep": by_rank(0.03),
        "step_microstep": by_rank(0.04),
    }
    waterfall = waterfall_of(Step("Run 1", 0.2, 1, timers_of(timers), micro_batches=4))
    assert ms(waterfall) == {"compute": 120.0, "data": 30.0, "optimizer": 40.0, "unexplained": 10.0}


def test_terms_that_exceed_the_step_leave_a_negative_remainder() -> None:
    timers = timers_of({"forward-compute": by_rank(0.4), "optimizer": by_rank(0.3)})
    waterfall = waterfall_of(Step("Run 1", 0.5, 1, timers))
    assert waterfall.ns("unexplained") == -200_000_000
    assert waterfall.parts[-1].basis == "the terms above add up to more than the step"
    assert sum(waterfall.percents()) == 10_000


def test_emulated_compute_has_no_ideal() -> None:
    timers = timers_of({"forward-compute": by_rank(0.4)})
    waterfall = waterfall_of(Step("Run 1", 0.5, 1, timers, 1e12, 1e12, PEAK, CEILING, is_emulated=True))
    assert ms(waterfall) == {"compute": 400.0, "unexplained": 100.0}
    assert "emulated" in dict(waterfall.absent)["ideal"]


def test_without_timers_all_terms_are_computed() -> None:
    parts = Timing(0.3, 0.05, 0.04, 0, 0, 0.03, 0.02, 0, 0.01, 0.02, 0.005)
    step = Step("Run 1", 0.6, 2, {}, 2 * 16e12, 2 * 16e12, PEAK, CEILING, predicted=parts)
    waterfall = waterfall_of(step)
    assert {part.kind for part in waterfall.parts} == {"computed", "remainder"}
    assert ms(waterfall)["unexplained"] == pytest.approx(130.0)
    assert ms(waterfall)["straggler"] == 5.0
    assert "all terms are computed" in waterfall.notes[0]


@given(
    st.floats(1e-6, 1e4),
    st.dictionaries(
        st.sampled_from(
            ["forward-compute", "backward-compute", "forward-recv", "backward-send", "all-grads-sync", "optimizer",
             "batch-generator", "forward-backward", "embedding-grads-all-reduce", "save-checkpoint", "strange"]
        ),
        st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)),
    ),
    st.integers(1, 8),
    st.integers(1, 64),
    st.floats(0, 1e18),
)  # fmt: skip
def test_terms_always_add_up_exactly(
    step_s: float, timers: dict[str, tuple[float, float]], stages: int, micro_batches: int, flops: float
) -> None:
    read = timers_of({name: by_rank(*seconds) for name, seconds in timers.items()})
    step = Step("Run 1", step_s, 4, read, flops, 4 * flops / 3, PEAK, CEILING, stages, micro_batches, schedule="1f1b")
    waterfall = waterfall_of(step)
    assert sum(part.ns for part in waterfall.parts) == waterfall.total_ns == round(step_s * NS)
    assert all(part.ns >= 0 for part in waterfall.parts[:-1])
    assert sum(waterfall.percents()) in (0, 10_000)


@given(st.lists(st.integers(-(10**12), 10**13), min_size=1), st.integers(1, 10**6))
def test_rounded_shares_add_up(values: list[int], units: int) -> None:
    shares = rounded(values, units)
    total = sum(values)
    assert sum(shares) == (units if total else 0)
    if total > 0:
        assert all(abs(share - value * units / total) <= 1.001 for share, value in zip(shares, values, strict=True))


def test_a_prediction_has_the_same_terms() -> None:
    model = Model(24, 1024, 16, 512, 50_000)
    job = Job(model, 64, 4, 2, 2, 2, precision="bf16", recompute="full")
    prediction = predict_job(job, cluster("A100", 8))
    waterfall = predicted_waterfall(prediction)
    assert waterfall.total_s == pytest.approx(prediction.iteration_s)
    assert abs(waterfall.ns("unexplained")) < 20  # rounding of the terms
    assert {"ideal", "matrix_rate", "kernels", "recompute", "bubble", "tensor", "data", "optimizer"} <= set(
        ms(waterfall)
    )
    without = predicted_waterfall(predict_job(Job(model, 64, 4, 2, 2, 2, precision="bf16"), cluster("A100", 8)))
    changes = {change.key: change.ns for change in difference(waterfall, without)}
    assert changes["recompute"] == -waterfall.ns("recompute") < 0
    assert sum(changes.values()) == without.total_ns - waterfall.total_ns


def test_broken_timers_are_left_out() -> None:
    timers = timers_of(
        {"forward-compute": {"median": float("nan"), "min": 0, "max": 1}, "optimizer": {"median": 1}, "step": {}}
    )
    assert timers == {}
    assert timers_of({"optimizer": by_rank(0.1)})["optimizer"] == Timer(0.1, 0.1, 0.1, {"0": 0.1})
    with pytest.raises(ValueError, match="not the duration"):
        waterfall_of(Step("Run 1", float("inf"), 1))


def test_a_trace_replaces_computed_parts_of_the_passes() -> None:
    traced = TracedStep(2, products=0.5, others=0.2, exposed=0.12, host=0.06)
    step = Step(
        "Run 1",
        1.0,
        1,
        timers_of({"forward-backward": by_rank(0.9), "all-grads-sync": by_rank(0.05), "optimizer": by_rank(0.05)}),
        model_flops=30e12,
        executed_flops=40e12,
        peak=PEAK,
        ceiling=CEILING,
        predicted=Timing(0.5, 0, 0.04, 0, 0, 0, 0, 0, 0, 0),
        traced=traced,
    )
    waterfall = waterfall_of(step)
    assert ms(waterfall) == pytest.approx({
        "ideal": 300.0,
        "matrix_rate": 75.0,  # three quarters of the products - the ideal
        "kernels": 150.0,
        "host": 60.0,
        "recompute": 175.0,
        "tensor": 70.0,  # exposed - what the timer of the gradients measures
        "data": 50.0,
        "optimizer": 50.0,
        "unexplained": 70.0,
    })  # fmt: skip
    kinds = {part.key: part.kind for part in waterfall.parts}
    assert (kinds["matrix_rate"], kinds["kernels"], kinds["tensor"], kinds["recompute"]) == (
        "measured", "measured", "measured", "derived",
    )  # fmt: skip
    assert "trace of 2 ranks" in next(part.basis for part in waterfall.parts if part.key == "host")


@pytest.mark.parametrize(
    ("total_s", "basis"),
    [
        (1.0, "no timer and no formula covers it"),
        (0.5, "the terms above add up to the step"),
        (0.5 - 1 / NS, "the terms above add up to the step"),  # each term is rounded to nanoseconds
        (0.25, "the terms above add up to more than the step"),
    ],
)
def test_what_is_unexplained_is_shown_with_its_reason_also_when_nothing_is_left(total_s: float, basis: str) -> None:
    fall = assembled("Run 1", total_s, [("compute", 0.5, "measured", "timers")], {}, ())
    (unexplained,) = (part for part in fall.parts if part.key == "unexplained")
    assert unexplained.basis == basis
    assert unexplained.seconds == pytest.approx(total_s - 0.5)


@pytest.mark.parametrize("peak", [None, Rate(100e12, "data sheet")])
def test_a_trace_alone_splits_a_step_that_has_no_timers(peak: Rate | None) -> None:
    traced = TracedStep(2, products=0.5, others=0.2, exposed=0.12, host=0.06, step_s=1.0)
    fall = waterfall_of(Step("Run 1", 2.0, 8, model_flops=8 * 40e12, peak=peak, traced=traced))
    assert sum(part.ns for part in fall.parts) == fall.total_ns == 2 * NS
    shares = {part.key: fall.share(part.key) for part in fall.parts}
    kinds = {part.key: part.kind for part in fall.parts}
    assert shares["data"] == pytest.approx(0.12)
    assert shares["host"] == pytest.approx(0.06)
    assert shares["unexplained"] == pytest.approx(0.12)
    if peak is None:
        assert shares["compute"] == pytest.approx(0.7)
    else:
        assert (shares["ideal"], shares["matrix_rate"]) == pytest.approx((0.2, 0.3))
        assert shares["kernels"] == pytest.approx(0.2)
        assert kinds["kernels"] == "measured"
    assert kinds["data"] == "measured"
    assert fall.notes == ("The run has no timers of its passes: its terms are shares of the traced steps.",)


@given(st.tuples(*[st.floats(0, 1)] * 4), st.floats(1e-6, 1e4), st.floats(0, 1e3))
def test_terms_of_a_trace_never_exceed_the_step(shares: tuple[float, ...], step_s: float, flops: float) -> None:
    traced = TracedStep(1, *shares)
    for peak in (None, Rate(1.0, "data sheet")):
        fall = waterfall_of(Step("Run 1", step_s, 1, model_flops=flops or None, peak=peak, traced=traced))
        assert sum(part.ns for part in fall.parts) == fall.total_ns
        assert fall.ns("unexplained") >= -len(fall.parts) or fall.ns("ideal") > 0
        assert all(part.ns >= 0 for part in fall.parts if part.key != "unexplained")
