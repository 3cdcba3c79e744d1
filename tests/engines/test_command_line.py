from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runners.config import ConfigError
from runners.engines.command_line import Request, read_command_line

BY_HAND = "--dist-url tcp://10.0.0.7:9000 --world-size 3 --rank 1 "


def read(flags: str) -> Request:
    return read_command_line(flags.split(), {})


def test_flags_describe_one_rank_of_a_configuration() -> None:
    request = read(
        f"{BY_HAND} --batch-size 64 --micro-batch-size 4 --mode 1f1b --num-layers 4 --embedding-dim 768"
        " --num-heads 12 --seq-length 2048 --num-iters 10 --profiling profiling --precision bf16"
    )
    config, place = request.config, request.place
    assert (place.rank, place.world_size, place.init_method) == (1, 3, "tcp://10.0.0.7:9000")
    assert place.local_world_size == 1
    assert request.by_hand
    assert request.all_operations
    assert (config.world_size, config.model.num_layers, config.num_micro_batches) == (3, 12, 16)
    assert (config.parallel.schedule, config.train.precision) == ("1f1b", "bf16")
    assert (config.train.iterations, config.train.warmup_steps) == (10, 1)


def test_the_command_of_the_three_node_case_needs_no_other_flag() -> None:
    command = (
        "--dist-url tcp://172.16.0.1:9000 --world-size 3 --batch-size 64 --profiling no-profiling --num-iters 10"
        " --embedding-dim 768 --num-layers 4 --rank 0 --mode gpipe --micro-batch-size 4"
    )
    model = read(command).config.model
    assert (model.num_layers, model.num_attention_heads, model.sequence_length) == (12, 12, 2048)


def test_ranks_that_meet_on_loopback_share_a_machine() -> None:
    place = read("--dist-url tcp://localhost:9000 --world-size 3 --rank 2").place
    assert (place.local_rank, place.local_world_size) == (2, 3)


def test_one_iteration_is_no_warmup() -> None:
    assert read(f"{BY_HAND} --num-iters 1").config.train.warmup_steps == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing --dist-url, --world-size, --rank; use --config FILE, or"),
        ("--rank 0 --world-size 2", "missing --dist-url;"),
        ("--config x.json --rank 0", "--config cannot be combined with --rank; remove one of them"),
        ("--config nowhere.json", "cannot read --config nowhere.json: No such file or directory"),
        ("--dist-url tcp://h:9000 --world-size 3 --rank 3", "--rank 3 is out of range for 3 ranks; use 0 to 2"),
        (
            "--dist-url http://h:9000 --world-size 3 --rank 0",
            "--dist-url.*invalid address http://h:9000; use tcp://HOST:PORT",
        ),
        ("--dist-url tcp://h:99999 --world-size 3 --rank 0", "--dist-url.*invalid address tcp://h:99999;"),
        ("--dist-url tcp://h --world-size 3 --rank 0", "--dist-url.*invalid address"),
        ("--dist-url tcp://h:1 --world-size 0 --rank 0", "--world-size.*invalid value 0.*at least 1"),
        ("--dist-url tcp://h:1 --world-size two --rank 0", "--world-size.*invalid value two; use an integer"),
        ("--dist-url tcp://h:1 --world-size 2 --rank -1", "--rank"),
        ("--dist-url tcp://h:1 --world-size 2 --rank 0 --mode 2f2b", "--mode.*'2f2b'.*gpipe.*1f1b"),
        ("--dist-url tcp://h:1 --world-size 2 --rank 0 --batch 4", "--batch"),
    ],
)
def test_bad_flags_name_flag_value_and_remedy(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(arguments)
    assert ended.value.code == 2
    output = " ".join(capsys.readouterr().err.split())
    assert re.search(message, output), output


def test_problems_of_a_configuration_by_hand_name_the_flag_too() -> None:
    with pytest.raises(ConfigError) as raised:
        read(f"{BY_HAND} --batch-size 5 --micro-batch-size 2 --num-heads 7")
    messages = [str(problem) for problem in raised.value.problems]
    assert messages[0].startswith("--num-heads model.num_attention_heads: num_attention_heads 7 does not divide")
    assert messages[1].startswith("--batch-size train.global_batch_size: global_batch_size 5 is not divisible")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"parallel": {"pipeline_parallel_size": 2}, "model": {"num_layers": 2}}))
    return path


def test_torchruns_variables_determine_the_rank(config_file: Path) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    request = read_command_line(["--config", str(config_file)], environment)
    assert request.place == (1, 2, 1, 2, "env://")
    assert not request.by_hand


def test_too_few_processes_are_refused_with_the_remedy(config_file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"2 stages need 2 processes, but 1 were started; use torchrun --nproc-per-node 2"
    ):
        read_command_line(["--config", str(config_file)], {})


@pytest.mark.parametrize(("content", "message"), [("{half", "is not valid JSON"), ("[1]", "contains a list")])
def test_an_invalid_configuration_file_is_refused(
    content: str, message: str, config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_file.write_text(content)
    with pytest.raises(SystemExit):
        read_command_line(["--config", str(config_file)], {})
    assert message in capsys.readouterr().err


def test_every_problem_of_a_file_is_reported(config_file: Path) -> None:
    config_file.write_text(json.dumps({"model": {"num_layer": 2}, "train": {"iterations": 0}}))
    with pytest.raises(ConfigError) as raised:
        read_command_line(["--config", str(config_file)], {})
    assert [problem.field for problem in raised.value.problems] == ["model.num_layer", "train.iterations"]
