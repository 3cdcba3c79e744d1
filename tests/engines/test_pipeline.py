"""Engine pipeline: under torchrun, alone and started manually; how it ends after failures."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from parlab.embedded import free_port
from runners.schedules import schedule
from runners.wire.protocol import EVENT_PREFIX, OOM_EXIT_CODE
from tests.patience import PATIENCE_S, TRAINING_S

ROOT = Path(__file__).parents[2]
ENGINE = [sys.executable, "-m", "runners.engines.pipeline"]
CONFIG: dict[str, Any] = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64},
    "train": {"global_batch_size": 40, "micro_batch_size": 1, "iterations": 3, "warmup_steps": 1},
    "parallel": {"pipeline_parallel_size": 2},
    "cluster": {"device": "cpu"},
}
BY_HAND = (
    "--batch-size 8 --micro-batch-size 2 --num-layers 1 --embedding-dim 32 --num-heads 2 --seq-length 16"
    " --vocab-size 64 --device cpu"
)


class Ended(NamedTuple):
    code: int
    output: str
    """Standard output and standard error, in one pipe."""

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.output.splitlines() if line.encode().startswith(EVENT_PREFIX)]
        assert all(len(line) < 4095 for line in lines)
        return [event for event in map(json.loads, lines) if event["event"] == name]


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(no_orphans: None) -> Iterator[Start]:
    """Start processes; those that still run are killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], timeout: float = TRAINING_S) -> Ended:
    output, _ = process.communicate(timeout=timeout)
    return Ended(process.returncode, output)


def write_config(directory: Path, **sections: dict[str, Any]) -> str:
    path = directory / "config.json"
    path.write_text(json.dumps({**CONFIG, **{name: {**CONFIG.get(name, {}), **sections[name]} for name in sections}}))
    return str(path)


ALONE = {"pipeline_parallel_size": 1}


@pytest.mark.slow
def test_torchrun_trains_and_every_rank_prints_its_steps(start: Start, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
    run = ended(start([*torchrun, *ENGINE[1:], "--config", write_config(tmp_path)]))
    assert run.code == 0, run.output
    for event in run.events("start"):
        assert (event["engine"], event["world_size"], event["backend"]) == ("pipeline", 2, "gloo")
        assert event["stage"] == event["rank"]
        assert event["parameters"] > 10_000
    assert sorted(event["rank"] for event in run.events("start")) == [0, 1]
    for rank in (0, 1):
        steps = [event for event in run.events("step") if event["rank"] == rank]
        assert [(event["step"], event["warmup"]) for event in steps] == [(1, True), (2, False), (3, False)]
        for step in steps:
            assert_step(step, rank)
    assert_operations(run)
    assert [event["iterations"] for event in run.events("end")] == [3, 3]
    slowest = {s: max(e["step_time_s"] for e in run.events("step") if e["step"] == s) for s in (2, 3)}
    assert max(event["average_step_time_s"] for event in run.events("end")) <= max(slowest.values())


def assert_step(step: dict[str, Any], rank: int) -> None:
    both = {"forward-compute", "backward-compute", "optimizer"}
    assert set(step["timers_s"]) == both | [{"forward-send", "backward-recv"}, {"forward-recv", "backward-send"}][rank]
    assert all(seconds > 0 for seconds in step["timers_s"].values())
    assert sum(step["timers_s"].values()) <= step["step_time_s"]
    assert ("loss" in step) == (rank == 1)
    assert 3 < step.get("loss", 4) < 5
    assert (step["samples"], step["tokens"]) == (40, 640)
    assert 50e6 < step["memory_bytes"] <= step["memory_peak_bytes"] * 1.01


def assert_operations(run: Ended) -> None:
    """Every pass of every micro batch is printed once, in the order of the schedule."""
    plan = schedule("1f1b", 2, 40)
    for rank in (0, 1):
        for step in (1, 2, 3):
            parts = [e for e in run.events("operations") if (e["rank"], e["step"]) == (rank, step)]
            assert [part["part"] for part in parts] == list(range(len(parts)))
            assert len(parts) > 1
            operations = [operation for part in parts for operation in part["operations"]]
            passes = [(name[0].upper(), k) for name, k, _, _ in operations if name.endswith("-compute")]
            assert passes == [(operation.kind, operation.micro_batch) for operation in plan[rank]]
            edges = [edge for *_, begin, end in operations for edge in (begin, end)]
            assert edges == sorted(edges)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_one_stage_trains_alone_without_any_environment(device: str, start: Start, tmp_path: Path) -> None:
    alone = write_config(tmp_path, parallel=ALONE, train={"precision": "bf16"}, cluster={"device": device})
    run = ended(start([*ENGINE, "--config", alone]))
    assert run.code == 0, run.output
    assert [event["device"].partition(":")[0] for event in run.events("start")] == [device]
    assert [event["backend"] for event in run.events("start")] == ["none"]
    assert [event["step"] for event in run.events("step") if "loss" in event] == [1, 2, 3]


def start_by_hand(start: Start, count: int, *flags: str) -> list[subprocess.Popen[str]]:
    url = f"tcp://127.0.0.1:{free_port()}"
    command = [*ENGINE, "--dist-url", url, "--world-size", str(count), *BY_HAND.split(), *flags]
    return [start([*command, "--rank", str(rank)]) for rank in range(count)]


@pytest.mark.slow
def test_manually_started_ranks_connect_and_print_human_readable_lines(start: Start) -> None:
    processes = start_by_hand(start, 3, "--mode", "gpipe", "--num-iters", "12", "--profiling", "profiling")
    for rank, run in enumerate(map(ended, processes)):
        assert run.code == 0, run.output
        assert [event["step"] for event in run.events("step")] == list(range(1, 13))
        assert [event["step"] for event in run.events("operations")] == list(range(1, 13))
        assert [event["layers"] for event in run.events("start")] == [[rank, rank]]  # one layer a stage
        finished = re.findall(
            r"^Finished running 12 iterations, averaged \(exclude the first iter\) run time: (\S+)$", run.output, re.M
        )
        assert [float(seconds) for seconds in finished] == pytest.approx(
            [event["average_step_time_s"] for event in run.events("end")], rel=1e-3
        )
        for way in ("forward", "backward"):
            assert len(re.findall(rf"^Rank {rank} node {way} pass takes \d+\.\d\ds$", run.output, re.M)) == 12


def wait_for_steps(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if '"event":"step"' in line:
            return
    pytest.fail("no step event")


@pytest.mark.slow
def test_a_rank_whose_neighbour_is_killed_reports_it_and_fails(start: Start) -> None:
    survivor, victim = start_by_hand(start, 2, "--num-iters", "100000")
    wait_for_steps(victim)
    victim.kill()
    run = ended(survivor)
    assert run.code == 1
    (error,) = run.events("error")
    assert error["rank"] == 0
    assert error["traceback"].startswith("Traceback (most recent call last)")
    assert "\nTraceback (most recent call last)" in run.output  # also in the log


@pytest.mark.slow
def test_a_stopped_rank_ends_the_others_after_the_timeout_of_the_run(start: Start, tmp_path: Path) -> None:
    # The rendezvous has the same timeout.
    endless = write_config(tmp_path, train={"iterations": 10**6}, launcher={"collective_timeout_s": 20})
    meeting = ["env", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}"]
    survivor, stopped = (start([*meeting, f"RANK={rank}", *ENGINE, "--config", endless]) for rank in (0, 1))
    wait_for_steps(stopped)
    stopped.send_signal(signal.SIGSTOP)
    run = ended(survivor)
    assert run.code == 1
    (error,) = run.events("error")
    assert re.search("timed out|timeout", error["traceback"], re.I)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_training(start: Start, tmp_path: Path) -> None:
    endless = write_config(tmp_path, parallel=ALONE, train={"iterations": 10**6})
    engine = start([*ENGINE, "--config", endless])
    wait_for_steps(engine)
    assert engine.stdout is not None
    engine.stdout.close()
    engine.stdout = None
    assert engine.wait(PATIENCE_S) == 1


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_an_oom_with_its_sizes(start: Start, tmp_path: Path) -> None:
    huge = write_config(tmp_path, parallel=ALONE, model={"hidden_size": 2**22})
    run = ended(start([*ENGINE, "--config", huge]))
    assert run.code == OOM_EXIT_CODE
    (oom,) = run.events("oom")
    assert oom["phase"] == "model"
    assert oom["requested_bytes"] > oom["total_bytes"] > oom["free_bytes"] > 0
    assert not run.events("error")


@pytest.mark.slow
def test_activations_that_do_not_fit_are_an_oom_of_the_forward_pass(start: Start, tmp_path: Path) -> None:
    limit = 6 * 2**30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    wide = write_config(
        tmp_path, parallel=ALONE, model={"vocab_size": 2**16, "sequence_length": 2048}, train={"micro_batch_size": 20}
    )
    run = ended(start([*ENGINE, "--config", wide], preexec_fn=limited))
    assert run.code == OOM_EXIT_CODE, run.output
    (oom,) = run.events("oom")
    assert oom["phase"] == "forward"
    assert oom["requested_bytes"] == 20 * 2048 * 2**16 * 4  # the logits
    assert oom["total_bytes"] == limit


def test_an_invalid_configuration_prints_every_problem_and_exits_with_2(start: Start, tmp_path: Path) -> None:
    invalid = write_config(
        tmp_path, model={"num_attention_heads": 3}, train={"global_batch_size": 5, "micro_batch_size": 2}
    )
    run = ended(start([*ENGINE, "--config", invalid]))
    assert run.code == 2
    assert "model.num_attention_heads: num_attention_heads 3 does not divide hidden_size 32; use" in run.output
    assert "train.global_batch_size: global_batch_size 5 is not divisible" in run.output


@pytest.mark.slow
def test_missing_gpus_are_a_problem_of_the_configuration(start: Start, tmp_path: Path) -> None:
    path = write_config(tmp_path, parallel=ALONE, cluster={"device": "cuda"})
    run = ended(start(["env", "CUDA_VISIBLE_DEVICES=", *ENGINE, "--config", path]))
    assert run.code == 2
    assert "cluster.device: device cuda needs one GPU per rank on this machine (1), but torch" in run.output
    assert "Traceback" not in run.output


@pytest.mark.slow
def test_a_rank_does_not_outlive_its_launcher(start: Start, tmp_path: Path) -> None:
    endless = write_config(tmp_path, parallel=ALONE, train={"iterations": 10**6})
    code = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    launcher = start([sys.executable, "-c", code, *ENGINE, "--config", endless])
    assert launcher.stdout is not None
    rank = psutil.Process(int(launcher.stdout.readline()))
    try:
        wait_for_steps(launcher)
        launcher.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
    finally:
        if rank.is_running():
            rank.kill()
