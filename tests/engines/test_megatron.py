"""Engine megatron: Megatron-LM's flags, a configuration file, and the output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parlab.embedded import free_port
from runners.config import ConfigError
from runners.engines.megatron_flags import Megatron, argument_dump, arguments_of, read_flags
from runners.engines.megatron_log import MegatronLog
from runners.engines.process.events import Printer
from runners.engines.process.timers import StepTimes
from runners.engines.training.megatron_stage import StepResult
from tests.engines.test_pipeline import ROOT, Ended, ended

pytestmark = pytest.mark.slow

ENGINE = [sys.executable, "-m", "runners.engines.megatron"]
# A BERT of the founding measurements, with all of its flags, and smaller.
FLAGS = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 512 --lr 0.001"
    " --lr-decay-iters 990000 --train-iters 6 --min-lr 0.00001 --lr-warmup-fraction 0.01 --vocab-file /data/vocab.txt"
    " --vocab-size 100 --make-vocab-size-divisible-by 16 --split 949,50,1 --micro-batch-size 4 --global-batch-size 16"
    " --log-interval 2 --save-interval 500 --eval-interval 100 --eval-iters 10 --checkpoint-activations"
    " --save /data/checkpoints --data-path /data/text"
)
LAYOUT = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"


def read(flags: str, world_size: int = 1) -> Megatron:
    return read_flags(flags.split(), {"RANK": "0", "WORLD_SIZE": str(world_size)})


def test_flags_describe_a_layout_of_all_processes() -> None:
    config, place, unused = read(f"{FLAGS} {LAYOUT} --fp16", world_size=8)
    assert place.world_size == config.world_size == 8
    assert (config.parallel.data_parallel_size, config.parallel.schedule) == (2, "1f1b")
    assert (config.model.kind, config.model.attention_mask, config.model.vocab_size) == ("bert", "bidirectional", 128)
    assert (config.train.precision, config.train.recompute, config.train.optimizer) == ("fp16", "full", "adamw")
    assert (config.train.gradient_clipping, config.train.log_interval, config.train.warmup_steps) == (1.0, 2, 1)
    assert unused["data_path"] == ["/data/text"]
    assert {"save", "lr_warmup_fraction", "eval_iters"} < set(unused)


def test_flags_of_later_versions_configure_a_gpt() -> None:
    flags = f"{FLAGS.replace('--checkpoint-activations', '')} {LAYOUT} --model gpt --bf16 --sequence-parallel"
    config = read(
        f"{flags} --recompute-granularity selective --num-layers 4 --num-layers-per-virtual-pipeline-stage 1"
        " --weight-decay 0 --clip-grad 0",
        world_size=4,
    ).config
    assert (config.model.kind, config.model.attention_mask) == ("gpt", "causal")
    assert (config.parallel.schedule, config.parallel.virtual_stages) == ("interleaved-1f1b", 2)
    assert config.parallel.sequence_parallel
    assert (config.train.precision, config.train.recompute, config.train.optimizer) == ("bf16", "selective", "adam")
    assert config.train.gradient_clipping == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "the following arguments are required: --num-layers"),
        (f"{FLAGS} --save-interva 3", "unrecognized arguments: --save-interva"),
        (f"{FLAGS} {LAYOUT}", "2 x --pipeline-model-parallel-size 2 does not divide the 6 processes; use torchrun"),
        (f"{FLAGS} --weight-decay 0.1", "--weight-decay: invalid choice"),
    ],
)
def test_invalid_flags_are_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read(flags, world_size=6)
    assert message in capsys.readouterr().err


def test_an_invalid_configuration_names_flag_field_and_remedy() -> None:
    with pytest.raises(ConfigError, match=r"--num-attention-heads model.num_attention_heads: .* 5 does not divide"):
        read(f"{FLAGS} --num-attention-heads 5")


def test_the_argument_dump_has_megatrons_format() -> None:
    config, place, unused = read(FLAGS)
    lines = argument_dump(arguments_of(config, place, "gloo", unused))
    assert lines[0] == "------------------------ arguments ------------------------"
    assert "  tensor_model_parallel_size ...................... 1" in lines
    assert "  save ............................................ /data/checkpoints" in lines
    assert lines[-1] == "-------------------- end of arguments ---------------------"


def test_skipped_iterations_are_counted_and_have_no_loss(capfd: pytest.CaptureFixture[str]) -> None:
    config = read(FLAGS).config
    log = MegatronLog(config, Printer(0), prints_steps=True, prints_memory=False)
    times = StepTimes(0.25, {"optimizer": 0.1}, [])
    for step, (loss, is_skipped) in enumerate([(5.0, False), (9.0, True), (float("nan"), False)], start=1):
        log.add(step, StepResult(times, {"lm": loss}, 1, 2, 128.0, 0.5, is_skipped))
    (line, timers) = capfd.readouterr().out.splitlines()  # the third step is in an incomplete interval
    assert "iteration        2/       6 | consumed samples:           32 |" in line
    assert "elapsed time per iteration (ms): 250.0 |" in line
    assert "lm loss: 5.000000E+00 | loss scale: 128.0 | grad norm: 0.500 | number of skipped iterations:   1 |" in line
    assert timers == "time (ms) | optimizer: 100.00"


class Printed(NamedTuple):
    """Output of four ranks, and the result of parlab's reader of Megatron-LM logs."""

    run: Ended
    document: dict[str, Any]
    records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={free_port()}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *ENGINE[1:], *FLAGS.split(), *LAYOUT.split()],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        run = ended(process)
    finally:
        process.kill()
        process.wait()
    assert run.code == 0, run.output
    log = tmp_path_factory.mktemp("megatron") / "log.txt"
    log.write_text(run.output)
    reader = [sys.executable, "-m", "parlab.formats", str(log)]
    document, records = (
        subprocess.run([*reader, option], cwd=ROOT, capture_output=True, check=True).stdout
        for option in ("--json", "--records")
    )
    return Printed(run, json.loads(document), [json.loads(record) for record in records.splitlines()])


def test_every_rank_prints_its_place_and_its_steps(printed: Printed) -> None:
    run = printed.run
    places = {e["rank"]: (e["stage"], e["data_rank"], e["tensor_rank"], e["layers"]) for e in run.events("start")}
    assert places == {0: (0, 0, 0, [0, 0]), 1: (0, 0, 1, [0, 0]), 2: (1, 0, 0, [1, 1]), 3: (1, 0, 1, [1, 1])}
    assert {(e["engine"], e["world_size"], e["backend"]) for e in run.events("start")} == {("megatron", 4, "gloo")}
    steps = run.events("step")
    assert sorted((e["rank"], e["step"]) for e in steps) == [(rank, step) for rank in range(4) for step in range(1, 7)]
    for event in steps:
        assert ("loss" in event) == (event["rank"] >= 2)
        if event["rank"] >= 2:
            assert event["loss"] == pytest.approx(event["lm_loss"] + event["sop_loss"])
        timers = event["timers_s"]
        outer = [seconds for name, seconds in timers.items() if not name.startswith("optimizer-")]
        assert 0 < sum(outer) <= event["step_time_s"]
        assert {"forward-compute", "backward-compute", "optimizer", "optimizer-clip-main-grad"} <= set(timers)
    assert [event["iterations"] for event in run.events("end")] == [6] * 4


def values_by_iteration(printed: Printed, kind: str) -> dict[int, dict[str, float]]:
    """Return the values of the records of a kind, by iteration."""
    return {record["iteration"]: record["values"] for record in printed.records if record["kind"] == kind}


def test_the_reader_of_megatron_logs_reads_the_launch_from_the_arguments(printed: Printed) -> None:
    document = printed.document
    assert document["format"] == "megatron"
    assert document["unread"]["lines"] == 0
    (segment,) = document["segments"]
    launch = segment["launch"]
    assert (launch["world_size"], launch["tensor_parallel_size"], launch["pipeline_parallel_size"]) == (4, 2, 2)
    assert (launch["global_batch_size"], launch["micro_batch_size"], launch["num_layers"]) == (16, 4, 2)
    assert launch["arguments"]["lr_warmup_fraction"] == 0.01


def test_the_reader_of_megatron_logs_reads_the_means_of_the_events(printed: Printed) -> None:
    events = {event["step"]: event for event in printed.run.events("step") if event["rank"] == 3}
    steps = values_by_iteration(printed, "step")
    assert sorted(steps) == [2, 4, 6]
    for last, values in steps.items():
        pair = [events[last - 1], events[last]]
        for name, event_name, tolerance in (("step_time_s", "step_time_s", 6e-5), ("lm_loss", "lm_loss", 1e-5)):
            assert values[name] == pytest.approx(sum(event[event_name] for event in pair) / 2, abs=tolerance)
        assert values["grad_norm"] == pytest.approx(events[last]["grad_norm"], abs=1e-3)
        assert values["global_batch_size"] == 16
    timers = values_by_iteration(printed, "timers")
    for last, values in timers.items():
        for name, seconds in values.items():
            pair_s = [event["timers_s"][name] for event in (events[last - 1], events[last])]
            assert seconds == pytest.approx(sum(pair_s) / 2, abs=6e-6), name
    assert sorted(timers) == [2, 4, 6]


def test_one_rank_of_each_stage_prints_its_memory(printed: Printed) -> None:
    ranks = re.findall(r"^\[Rank (\d)\] \(after 2 iterations\) memory", printed.run.output, re.M)
    assert sorted(ranks) == ["0", "2"]


def test_a_configuration_needs_as_many_processes_as_its_layout_has_ranks(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"parallel": {"engine": "megatron", "tensor_parallel_size": 2}}))
    run = subprocess.run([*ENGINE, "--config", str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "use torchrun --nproc-per-node 2, or a layout of 1 ranks" in run.stderr
