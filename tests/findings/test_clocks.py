"""Rules about times: averages since the start, first records, remaining time, bars, rates of steps and of a summary."""

from __future__ import annotations

import pytest

from tests.findings.reading import findings_of, rules_of

FAIRSEQ = (
    "2026-01-02 10:{m:02d}:{s:02d} | INFO | train_inner | epoch 001: {n} / 9000 loss=14.{n}, ups={ups}, wpb=460,"
    " num_updates={n}, lr=1e-06, wall={wall}\n"
)


@pytest.mark.parametrize(("ups", "rules"), [("3.33", []), ("2.5", []), ("0.03", ["clock-of-steps"])])
def test_a_rate_of_steps_that_time_stamps_contradict_is_found(ups: str, rules: list[str]) -> None:
    lines = (FAIRSEQ.format(n=100 * n, ups=ups, m=n // 2, s=30 * (n % 2), wall=30 * n) for n in range(1, 6))
    assert rules_of("".join(lines)) == rules


def bar(rate: str, elapsed: str = "3:41:40", step: int = 5400) -> str:
    return f"lora_v1:  67%|######7   | {step}/8000 [{elapsed}<00:01, {rate}, lr: 2.0e-04 loss: 3.462e-01]\n"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        (bar("2566.52it/s"), ["clock-of-steps"]),
        (bar("2.48s/it"), []),
        (bar("1.25it/s"), []),
        (bar("9.50it/s", "10:00", 40), []),
    ],
    ids=["impossible", "agrees", "pauses", "a slow start"],
)
def test_the_rate_of_a_bar_that_its_own_clock_contradicts_is_found(line: str, rules: list[str]) -> None:
    assert rules_of(line) == rules


def test_times_that_fall_as_an_average_does_are_reported_as_one() -> None:
    printed = [0.75 + 12.5 / n for n in range(10, 130, 10)]
    lines = [f"Epoch: 0/9 Step: {10 * n}/900 | {time:.3f}s/batch | loss 1.5\n" for n, time in enumerate(printed, 1)]
    (finding,) = findings_of("".join(lines))
    assert finding.rule == "average-as-time"
    assert "0.749 s each" in finding.message


@pytest.mark.parametrize(
    "times", [[2.0, *[0.75] * 11], [2.0, 1.5, *[0.75] * 10], [0.75 + n / 50 for n in range(12)]],
    ids=["one slow step", "two slow steps", "slower"],
)  # fmt: skip
def test_times_of_steps_after_a_slow_start_are_no_averages(times: list[float]) -> None:
    lines = [f"Epoch: 0/9 Step: {10 * n}/900 | {time:.3f}s/batch | loss 1.5\n" for n, time in enumerate(times, 1)]
    assert rules_of("".join(lines)) == []


STEP = "completed step: {n}, seconds: {seconds}, TFLOP/s/device: 346.9, Tokens/s/device: 19006.5, loss: 12.{n}\n"


@pytest.mark.parametrize(("first", "rules"), [("0.625", ["first-record"]), ("10.25", []), ("95.5", [])])
def test_a_first_step_that_did_not_wait_for_its_work_is_found(first: str, rules: list[str]) -> None:
    assert rules_of("".join(STEP.format(n=n, seconds=first if n == 1 else "10.25") for n in range(1, 5))) == rules


@pytest.mark.parametrize(("eta", "rules"), [("-1 day, 4:39:18", ["remaining-time"]), ("1 day, 4:39:18", [])])
def test_a_remaining_time_below_zero_is_found(eta: str, rules: list[str]) -> None:
    line = "2026-01-02 15:{m}:12,774 - mm - INFO - Epoch [21][{n}/440]\tlr: 0.002, eta: {eta}, time: 3.0, loss: 0.{n}\n"
    text = "".join(line.format(m=50 + n, n=20 * n, eta=eta) for n in (1, 2, 3))
    assert rules_of(text) == rules


SUMMARY = """| Performance
| - Total tokens  : 999,424
| - Training Time : 48.30 s
| - Tok/sec       : {rate} tok/s
"""


@pytest.mark.parametrize(("rate", "rules"), [("20692.0", []), ("60.93", ["tokens-of-seconds"])])
def test_a_rate_that_is_not_the_tokens_over_the_seconds_of_its_summary_is_found(rate: str, rules: list[str]) -> None:
    assert rules_of(SUMMARY.format(rate=rate)) == rules
