"""Rules about the work of a step: tokens, planned steps, FLOP/s, and the health of gradients."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.findings import RunFacts, run_findings
from tests.findings.reading import findings_of, rules_of

NANOCHAT = (
    "Total batch size 262,144 => gradient accumulation steps: {accumulation}\n"
    + "".join(
        f"step 0020{n}/71680 (0.14%) | loss: 4.5{n} | lrm: 1.00 | dt: 1024.00ms | tok/sec: {{rate}} | mfu: 24.10 |\n"
        for n in range(1, 7)
    )
)  # fmt: skip


def test_a_rate_without_its_accumulation_steps_contradicts_the_tokens_of_a_step() -> None:
    (finding,) = findings_of(NANOCHAT.format(accumulation=4, rate="64,000"))
    assert finding.rule == "tokens-of-step"
    assert "256,000 tokens/s" in finding.message
    assert "the 4 accumulation steps" in finding.message


@pytest.mark.parametrize("rate", ["256,000", "251,000"])
def test_a_rate_that_fits_or_that_padding_makes_smaller_is_healthy(rate: str) -> None:
    assert rules_of(NANOCHAT.format(accumulation=4, rate=rate)) == []


def test_more_tokens_than_a_step_has_are_found() -> None:
    assert rules_of(NANOCHAT.format(accumulation=4, rate="300,000")) == ["tokens-of-step"]


OPENNMT = "Results for {options}, on one GPU:\n\n" + "".join(
    f"> [2019-04-09 19:19:{7 * n:02},800 INFO] Step {50 * n}/2000; acc: 2.{n}; ppl: 31.8{n}; xent: 7.9{n}; lr: 0.00001;"
    f" 25{n}00/7300 tok/s; {7 * n} sec\n"
    for n in range(1, 6)
)


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ("-batch_size 4096 and -max_generator_batches 32", ["tokens-of-samples"]),
        ("-batch_size 64", []),
        ("-batch_size 4096 -batch_type tokens", []),
    ],
)
def test_a_batch_of_more_samples_than_tokens_is_found(options: str, rules: list[str]) -> None:
    assert rules_of(OPENNMT.format(options=options)) == rules


BANNER = (
    "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs = 1\n"
    "    \\   /|    Num examples = 4,000 | Num Epochs = 2\n"
    "O^O/ \\_/ \\    Batch size per device = 4 | Gradient Accumulation steps = 2\n"
    "\\        /    Total batch size = 8 | Total steps = {steps}\n"
    "{{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.01}}\n"
)


@pytest.mark.parametrize(
    ("steps", "rules"), [("1,000", []), ("60", []), ("1,002", []), ("2,000", ["steps-of-examples"])]
)
def test_more_steps_than_examples_and_epochs_give_are_found(steps: str, rules: list[str]) -> None:
    assert rules_of(BANNER.format(steps=steps)) == rules


def log(*cells: str) -> str:
    return "".join(f"step {n}: loss: 2.{n}, step time: {cell}\n" for n, cell in enumerate(cells, 1))


def test_flops_that_do_not_follow_the_time_are_found_in_any_record() -> None:
    healthy = log("2.00 s, tflops: 90.0", "2.50 s, tflops: 72.0", "2.00 s, tflops: 90.0")
    wrong = log("2.00 s, tflops: 45.0", "2.10 s, tflops: 90.0", "2.00 s, tflops: 90.0")
    assert rules_of(healthy) == []
    assert rules_of(wrong) == ["flops-times-time"]


def test_times_may_vary_more_than_flops_that_are_averaged() -> None:
    assert rules_of(log("2.00 s, tflops: 90.0", "4.50 s, tflops: 88.0", "2.00 s, tflops: 90.0")) == []


def test_more_flops_than_any_device_has_need_no_name_of_the_device() -> None:
    assert rules_of(log(*["2.00 s, tflops: 441.0"] * 3)) == []
    assert rules_of(log(*["2.00 s, tflops: 9900.0"] * 3)) == ["above-any-device"]


@pytest.mark.parametrize("values", [("0.42", "0.43", "0.42"), ("42.4", "43.1", "42.2")])
def test_a_mfu_of_either_spelling_is_healthy(values: tuple[str, ...]) -> None:
    assert rules_of(log(*[f"2.00 s, mfu: {value}" for value in values])) == []


def test_a_mfu_above_one_hundred_per_cent_is_found_in_either_spelling() -> None:
    assert rules_of(log(*["2.00 s, mfu: 337.25"] * 3)) == ["above-peak"]
    assert rules_of(log(*["2.00 s, mfu: 1.12"] * 3)) == ["above-peak"]


@pytest.mark.parametrize(
    ("norms", "rules"),
    [
        ((1.5, 1.25, 1.5, 1.0, 1.25), []),
        ((0.0, 0.0, 0.0, 0.0, 0.0), ["gradients"]),
        ((1.5, 1.25, 1.5, 1.0, 950.0), ["gradients"]),
        ((0.0, 0.0), []),
    ],
)
def test_gradients_that_are_zero_or_explode_are_found(norms: tuple[float, ...], rules: list[str]) -> None:
    assert rules_of(log(*[f"2.00 s, grad_norm: {norm}" for norm in norms])) == rules


@pytest.mark.parametrize(
    ("scales", "rules"),
    [((65536, 32768, 65536, 65536, 65536), []), ((65536, 4096, 256, 16, 1), ["loss-scale"]), ((1, 1, 1, 1, 1), [])],
)
def test_a_loss_scale_that_collapses_is_found(scales: tuple[int, ...], rules: list[str]) -> None:
    assert rules_of(log(*[f"2.00 s, loss_scale: {scale}.0" for scale in scales])) == rules


STAMPED = (
    "[2026-01-02 10:{m:02d}:{s:02d}] iteration {n:8d}/ 900 | elapsed time per iteration (ms): {ms} | lm loss: 8.5 |\n"
)


def stamped(ms: float, seconds: int) -> str:
    return "".join(STAMPED.format(n=n, ms=ms, m=n * seconds // 60, s=n * seconds % 60) for n in range(1, 20))


@pytest.mark.parametrize(
    ("ms", "rules"),
    [(5000.0, []), (4000.0, []), (2400.0, []), (1000.0, ["clock-of-steps"]), (50000.0, ["clock-of-steps"])],
)
def test_step_times_that_time_stamps_contradict_are_found(ms: float, rules: list[str]) -> None:
    assert rules_of(stamped(ms, 5)) == rules


AVERAGED = "[2026-01-02 10:{m:02d}:{s:02d}] step:{n}/900 train_loss:2.5 step_avg:{ms:.1f}ms\n"


@pytest.mark.parametrize(
    ("averages", "rules"),
    [([5000.0] * 19, []), ([1000.0] * 19, ["clock-of-steps"]), ([60000.0 / n for n in range(1, 20)], [])],
    ids=["agrees", "contradicts", "after a slow start"],
)
def test_a_running_average_that_time_stamps_contradict_is_found(averages: list[float], rules: list[str]) -> None:
    lines = (AVERAGED.format(n=n, ms=ms, m=5 * n // 60, s=5 * n % 60) for n, ms in enumerate(averages, 1))
    assert rules_of("".join(lines)) == rules


TITAN = "[titan] 2026-01-02 10:{m:02d}:{s:02d},125 - root - INFO - "
TITAN_START = (
    TITAN.format(m=0, s=0)
    + "Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps 1,"
    " sequence length 4096, total steps 900 (warmup 2)\n"
    + TITAN.format(m=0, s=0)
    + "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1\n"
)


@pytest.mark.parametrize(("tps", "rules"), [("1,638", []), ("1,200", []), ("16,384", ["clock-of-steps"])])
def test_a_rate_of_tokens_that_time_stamps_contradict_is_found(tps: str, rules: list[str]) -> None:
    # 8,192 tokens of each GPU in steps that are 5 s apart.
    steps = "".join(
        TITAN.format(m=5 * n // 60, s=5 * n % 60)
        + f"step: {n:2d}  loss: 8.{n:02d}  grad_norm: 1.5  memory: 30.50GiB(38.53%)  tps: {tps}  tflops: 50.12\n"
        for n in range(1, 20)
    )
    assert rules_of(TITAN_START + steps) == rules


SEEN = """torchrun --nproc_per_node=4 train.py --training.global_batch_size 32 --training.seq_len 2048
[titan] 2026-01-02 16:37:32,439 - root - INFO - n_tokens_seen: {seen}
[titan] 2026-01-02 16:37:32,440 - root - INFO - step:  5  loss:  5.63  memory:  0.65GiB(0.82%)  tps: 50,305  mfu: 1.15%
"""


@pytest.mark.parametrize(("seen", "rules"), [("327680.0", []), ("655360.0", ["tokens-seen"]), ("500000.0", [])])
def test_tokens_that_are_seen_twice_as_often_as_there_are_are_found(seen: str, rules: list[str]) -> None:
    assert rules_of(SEEN.format(seen=seen)) == rules


@pytest.mark.parametrize(
    ("losses", "rules"),
    [((12.25, 1.8e-06, 0.0), ["loss-zero"]), ((12.25, 9.5, 8.5), []), ((0.0, 0.01, 0.0), [])],
)
def test_a_loss_that_becomes_exactly_0_is_found(losses: tuple[float, ...], rules: list[str]) -> None:
    assert rules_of("".join(f"step: {n} loss: {loss} lr: 0.001\n" for n, loss in enumerate(losses, 1))) == rules


@pytest.mark.parametrize(("rate", "rules"), [("8.90638e+19", ["rate-of-tokens"]), ("8.9e+06", [])])
def test_tokens_per_second_that_no_cluster_reaches_are_found(rate: str, rules: list[str]) -> None:
    bar = "{n}89/88743 [10:51:46<53:53,  2.09it/s, loss=5.7, wps={rate}, num_updates=34{n}000, lr=0.0002]"
    assert rules_of("\n".join(bar.format(n=n, rate=rate) for n in (1, 2, 3))) == rules


@pytest.mark.parametrize(("samples", "rules"), [(2, ["samples-per-second"]), (32, [])])
def test_samples_of_a_training_are_compared_with_its_rate_and_duration(samples: int, rules: list[str]) -> None:
    summary = "{'train_runtime': 297.6561, 'train_samples_per_second': 0.108, 'train_loss': 3.1, 'epoch': 1.0}"
    block = (
        f"***** train metrics *****\n  epoch                    =        1.0\n  train_samples            = {samples}\n"
    )
    assert rules_of(f"{summary}\n{block}") == rules


GRPO = """[INFO|trainer.py:2405] 2026-01-02 12:04:09,913 >> ***** Running training *****
[INFO|trainer.py:2406] 2026-01-02 12:04:09,913 >>   Num examples = 5,498
[INFO|trainer.py:2407] 2026-01-02 12:04:09,914 >>   Num Epochs = 1
[INFO|trainer.py:2411] 2026-01-02 12:04:09,914 >>   Total train batch size (w. parallel) = 224
[INFO|trainer.py:2413] 2026-01-02 12:04:09,914 >>   Total optimization steps = 196
"""


@pytest.mark.parametrize(
    ("remark", "rules"), [("", ["steps-of-examples"]), ("I set num_generations to 8 and ran it.\n", [])]
)
def test_a_batch_of_completions_has_fewer_examples(remark: str, rules: list[str]) -> None:
    assert rules_of(remark + GRPO) == rules


def of_run(thirds: list[float], **config: Any) -> list[str]:
    summary = {"trend": {"thirds_s": thirds, "hours": 5.25}}
    facts = RunFacts(number=1, state="finished", config={}, summary=summary, arguments=config)
    return [finding.rule for finding in run_findings(facts)]


def test_a_run_whose_steps_take_longer_and_longer_over_hours_is_found() -> None:
    assert of_run([1.25, 1.5, 1.75]) == ["slows"]
    assert of_run([1.25, 1.25, 1.3]) == []
    assert of_run([1.25, 1.9, 1.6]) == []
    assert of_run([1.25, 1.5, 1.75], rampup_batch_size="32 32 1000") == []


PADDLE = "root INFO: epoch: [0/9], iter: {n}, loss: 0.69, batch_cost: {cost} s, samples: 5120, ips: 198.8\n"


@pytest.mark.parametrize(("cost", "rules"), [("25.75", []), ("2.575", []), ("0.6", ["samples-per-second"])])
def test_a_rate_that_is_not_its_samples_over_its_seconds_is_found(cost: str, rules: list[str]) -> None:
    # 5,120 samples are those of 10 steps of 2.575 s.
    assert rules_of("".join(PADDLE.format(n=n, cost=cost) for n in (10, 20))) == rules


AXOLOTL = """micro_batch_size: 4
sequence_len: 4096
gradient_accumulation_steps: {accumulation}
world_size: 8
{{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'tokens/train_per_sec_per_gpu': {rate}, 'epoch': 0.01}}
  1%|          | 2/200 [00:03<06:20,  1.93s/it]
{{'loss': 1.2, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'tokens/train_per_sec_per_gpu': {rate}, 'epoch': 0.02}}
  2%|1         | 3/200 [00:05<06:20,  1.93s/it]
  2%|1         | 4/200 [00:07<06:18,  1.93s/it]
"""


def test_more_tokens_than_the_largest_step_has_are_those_of_all_gpus_named_as_one() -> None:
    (finding,) = findings_of(AXOLOTL.format(accumulation=1, rate=68012.1))
    assert finding.rule == "tokens-of-step"
    assert "one of the 8 GPUs is taken for all of them" in finding.message


@pytest.mark.parametrize(("accumulation", "rate"), [(1, 8501.5), (8, 68012.1), (1, 3000.0)])
def test_as_many_tokens_as_a_step_may_have_are_no_finding(accumulation: int, rate: float) -> None:
    assert rules_of(AXOLOTL.format(accumulation=accumulation, rate=rate)) == []
