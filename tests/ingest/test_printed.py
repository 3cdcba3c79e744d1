"""The output of a team's own command, read by the readers while it streams in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command

from parlab.formats.schema import Launch
from parlab.ingest.batches.services import attempt_reingest, batch_apply
from parlab.ingest.summaries import printed
from parlab.lab.models import Attempt, Finding, Run
from parlab.series import store
from runners.config import RunConfig
from runners.wire.protocol import Report

from .output import event, step
from .test_services import batch, stored

pytestmark = pytest.mark.django_db

FORMATS = Path(__file__).parent.parent / "formats"
MEGATRON = (FORMATS / "megatron" / "core_timers.log").read_bytes()
TWO_LAUNCHES = (FORMATS / "megatron" / "two_launches.log").read_bytes()
ARGUMENTS = b"""------------------------ arguments ------------------------
  global_batch_size ............................... 16
  hidden_size ..................................... 1024
  micro_batch_size ................................ 2
  num_layers ...................................... 24
  padded_vocab_size ............................... 50304
  bf16 ............................................ True
  seq_length ...................................... 512
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""
START = event("start", rank=0, t=1_700_000_000.0, engine="command")


def telemetry(second: int, **numbers: float) -> bytes:
    return event("telemetry", rank=-1, t=1_700_000_000.0 + second, memory_bytes=5_000 + second, **numbers)


@pytest.fixture
def command(make_attempt: Callable[..., Attempt]) -> Callable[..., Attempt]:
    """Make an attempt of a command: command("--layers={model.num_layers}")."""

    def make(*argv: str) -> Attempt:
        data: dict[str, Any] = {
            "parallel": {"engine": "command", "tensor_parallel_size": 2},
            "command": {"argv": ["/opt/train.py", *argv]},
            "model": {"num_layers": 7},
        }
        attempt = make_attempt(state="dispatched", point={"train.seed": Run.objects.count()})
        resolved = RunConfig.model_validate(data).resolved()
        Run.objects.filter(pk=attempt.run_id).update(resolved=resolved)
        return attempt

    return make


def stream(attempt: Attempt, output: bytes, size: int = 700, *, is_whole: bool = True) -> dict[str, Any]:
    """Send an output in batches that are cut anywhere, with a summary after each; returns the run's summary."""
    batch_apply(batch=batch(attempt, 0, b"", Report(state="running", at=1.0, environment={"gpus_used": []})))
    position = 1
    for at in range(0, len(output), size):
        cache.clear()
        piece = output[at : at + size]
        position = batch_apply(batch=batch(attempt, position, piece))
    if is_whole:
        batch_apply(batch=batch(attempt, position, b"", Report(state="finished", at=9.0, exit_code=0)))
    attempt.refresh_from_db()
    attempt.run.refresh_from_db()
    result: dict[str, Any] = attempt.run.summary
    return result


def series(attempt: Attempt) -> dict[Any, Any]:
    return {key[1:]: columns for key, columns in stored(attempt)["series"].items()}


def test_a_megatron_log_gives_figures_while_it_streams_in(command: Callable[..., Attempt]) -> None:
    attempt = command()
    lines = MEGATRON.splitlines(keepends=True)
    result = stream(attempt, START + ARGUMENTS + b"".join(lines[:6]), is_whole=False)
    assert result["step_time_s"]["median"] == pytest.approx(1.0)
    assert attempt.last_step == 2
    assert attempt.run.state == "running"
    # Not the ten of a configuration that the command never saw.
    assert attempt.run.iterations == 3


def test_figures_series_and_launch_are_those_of_the_whole_log(command: Callable[..., Attempt]) -> None:
    attempt = command()
    output = START + ARGUMENTS + telemetry(1) + MEGATRON + telemetry(2)
    result = stream(attempt, output)
    assert result["read_by"] == "megatron"
    assert result["step_time_s"]["median"] == pytest.approx(1.005)
    assert result["samples_per_s"] == pytest.approx(16 / 1.005)
    assert result["tokens_per_s"] == pytest.approx(16 * 512 / 1.005)
    assert result["loss"] == {"first": 9.0, "last": 8.2}
    assert result["memory_peak_bytes"]["max"] == 4000 << 20
    assert result["timers_s"]["optimizer"]["max"] == pytest.approx(0.05, rel=0.3)
    assert result["tflops_per_gpu"] == pytest.approx(199.0)
    assert result["model_flops_per_iteration"] > 0
    assert "end" not in result
    assert attempt.run.samples_per_s == result["samples_per_s"]
    assert attempt.run.launch["world_size"] == 8
    loss = store.read(attempt.pk, "loss", rank=0)
    assert (loss.steps.tolist(), loss.values.tolist()) == ([1, 2, 3], [9.0, 8.5, 8.2])
    # The node's clock, by the events between the lines.
    assert set(loss.times) == {1_700_000_001.0}
    assert store.read(attempt.pk, "memory_bytes", rank=-1).values.tolist() == [5_001.0, 5_002.0]
    assert not Finding.objects.exists()


@pytest.mark.parametrize("size", [97, 1_000, 1_000_000])
def test_the_series_do_not_depend_on_how_the_output_is_split(command: Callable[..., Attempt], size: int) -> None:
    whole, cut = command(), command()
    output = START + ARGUMENTS + MEGATRON + telemetry(5)
    first, second = stream(whole, output, 1 << 20), stream(cut, output, size)
    assert first == second
    assert series(whole) == series(cut)


def test_reingest_gives_the_same_result_each_time(command: Callable[..., Attempt]) -> None:
    attempt = command()
    before = stream(attempt, START + ARGUMENTS + telemetry(1) + MEGATRON + telemetry(2)), stored(attempt)
    for _ in range(2):
        assert attempt_reingest(attempt=attempt) == sum(info.points for info in store.metrics(attempt.pk))
        attempt.run.refresh_from_db()
        assert (attempt.run.summary, stored(attempt)) == before


def test_a_log_with_events_and_iteration_lines_counts_the_events(command: Callable[..., Attempt]) -> None:
    attempt = command()
    events = b"".join(step(n, step_time_s=0.5, loss=1.0) for n in (1, 2, 3))
    result = stream(attempt, START + ARGUMENTS + events + MEGATRON)
    assert result["step_time_s"]["median"] == 0.5
    assert "read_by" not in result
    assert store.read(attempt.pk, "loss", rank=0).values.tolist() == [1.0, 1.0, 1.0]


def test_later_events_replace_the_points_of_a_reader(command: Callable[..., Attempt]) -> None:
    attempt = command()
    events = b"".join(step(n, step_time_s=0.5, loss=1.0) for n in (1, 2, 3))
    result = stream(attempt, START + telemetry(1) + MEGATRON + events)
    assert result["step_time_s"]["median"] == 0.5
    assert "read_by" not in result
    assert store.read(attempt.pk, "loss", rank=0).values.tolist() == [1.0, 1.0, 1.0]
    assert store.read(attempt.pk, "memory_bytes", rank=-1).values.tolist() == [5_001.0]
    assert not [info for info in store.metrics(attempt.pk) if info.metric.startswith("timer/")]
    before = stored(attempt)
    attempt_reingest(attempt=attempt)
    assert stored(attempt) == before


def test_only_fields_filled_into_the_command_count_as_stated(command: Callable[..., Attempt]) -> None:
    resolved = command("--layers={model.num_layers}", "{world_size}").run.resolved
    attempt = command("--layers={model.num_layers}", "{world_size}")
    attempt.run.refresh_from_db()
    resolved = attempt.run.resolved
    settings = printed.sections_of(Launch(hidden_size=64), resolved)
    assert settings["model"] == {"num_layers": 7, "hidden_size": 64}
    assert settings["train"] == {}
    # A log without sizes: no throughput from a default batch size.
    result = stream(attempt, START + b" iteration 1/ 2 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0 |\n" * 3)
    assert "samples_per_s" not in result
    assert not Finding.objects.exists()


def test_the_last_of_several_launches_is_summarised_and_all_are_in_the_series(command: Callable[..., Attempt]) -> None:
    attempt = command()
    result = stream(attempt, START + TWO_LAUNCHES)
    assert result["read_by"] == "megatron"
    assert len(store.read(attempt.pk, "step_time_s", rank=0)) > result["steps"]["count"]


@pytest.mark.parametrize(
    "output",
    [b"", b"hello\n", b"\xff\xfe\x00" * 1000, b"x" * 3_000_000, b"\r10%\r20%" * 1000, b"iteration 1/ 2 | elapsed time"],
)
def test_an_output_of_an_unknown_format_is_kept_unchanged(command: Callable[..., Attempt], output: bytes) -> None:
    attempt = command()
    assert stream(attempt, START + output, 1 << 20) == {}
    assert stored(attempt)["log"] == START + output


def test_points_of_a_reader_stay_if_the_output_cannot_be_read_again(
    command: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = command()
    before = stream(attempt, START + MEGATRON, is_whole=False)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of a reader")

    monkeypatch.setattr(printed, "read", fails)
    batch_apply(batch=batch(attempt, attempt.committed, b"more\n", Report(state="finished", at=9.0, exit_code=0)))
    attempt.run.refresh_from_db()
    assert attempt.run.state == "finished"
    assert attempt.run.summary == before


def test_events_of_a_command_have_no_throughput_from_defaults(command: Callable[..., Attempt]) -> None:
    events = b"".join(step(n, step_time_s=0.5) for n in (1, 2, 3))
    result = stream(command(), START + events)
    assert result["step_time_s"]["median"] == 0.5
    assert "samples_per_s" not in result


def test_a_reader_that_fails_costs_no_output(command: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of a reader")

    monkeypatch.setattr(printed, "read", fails)
    attempt = command()
    assert stream(attempt, START + MEGATRON) == {}
    monkeypatch.undo()
    call_command("reingest", verbosity=0)
    attempt.run.refresh_from_db()
    assert attempt.run.summary["read_by"] == "megatron"


@pytest.mark.parametrize(
    ("lines", "step_time_s"),
    [
        # torchtitan, NeMo and DeepSpeed's pipeline, as these print a step.
        (
            b"[rank0]:2026-01-05 10:00:0%d,000 - root - INFO - step:  %d  loss:  8.%d  memory: 10.00GiB(12.0%%)"
            b"  tps: 2,048  tflops: 100.00  mfu: 32.00%%\n",
            None,
        ),
        (
            b"[2026-01-05 10:00:0%d,000] [INFO] [engine.py:1:f] steps: %d loss: 2.%d iter time (s): 0.250"
            b" samples/sec: 64.000\n",
            0.25,
        ),
    ],
)  # fmt: skip
def test_other_trainers_are_read_too(command: Callable[..., Attempt], lines: bytes, step_time_s: float | None) -> None:
    attempt = command()
    result = stream(attempt, START + b"".join(lines % (n, n, n) for n in range(1, 6)))
    assert "read_by" in result, result
    assert store.read(attempt.pk, "loss", rank=0).steps.tolist() == [1, 2, 3, 4, 5]
    if step_time_s:
        assert result["step_time_s"]["median"] == pytest.approx(step_time_s)
