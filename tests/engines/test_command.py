"""Engine command: placeholders, the node's list of allowed commands, and launching without a shell."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runners.config import ConfigError, RunConfig, check
from runners.engines.command import check_allowed, command_argv, launched
from runners.node.abilities import ALLOWED_COMMANDS
from runners.node.launch.launch import command
from tests.engines.started import Output, run_engine

SCRIPT = r"""#!PYTHON
import os, sys
os.write(1, f"rank {os.environ.get('RANK')} {sys.argv[1:]}\n".encode())
sys.exit(int(os.environ.get("WANTED_CODE", 0)))
"""


def make_data(*argv: str, kind: str = "plain", **sections: Any) -> dict[str, Any]:
    return {"parallel": {"engine": "command"}, "command": {"argv": list(argv)}, "launcher": {"kind": kind}, **sections}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("PYTHON", sys.executable))
    path.chmod(0o755)
    return str(path)


def run(data: dict[str, Any], directory: Path, allowed: Any, **variables: str) -> Output:
    path = directory / "allowed.json"
    path.write_text(json.dumps(allowed))
    return run_engine(data, directory, processes=0, variables={ALLOWED_COMMANDS: str(path), **variables})


def test_fields_are_substituted_and_everything_else_reaches_the_command_unchanged(script: str, tmp_path: Path) -> None:
    odd = ["--layers={model.num_layers}", "{world_size}", "$(id); `id` && x", '{"json": {}}', ""]
    output = run(make_data(script, *odd), tmp_path, [[script]])
    assert output.code == 0, output.text
    assert (
        f"rank None {['--layers=4', '1', '$(id); `id` && x', chr(123) + chr(34) + 'json' + chr(34) + ': {}}', '']}"
        in output.text
    )
    (start,) = output.events("start")
    assert (start["engine"], start["launcher"]) == ("command", "plain")
    assert script in start["command"]


@pytest.mark.slow
def test_torchrun_starts_it_once_for_each_rank_of_the_layout(script: str, tmp_path: Path) -> None:
    layout = {"parallel": {"engine": "command", "tensor_parallel_size": 2}}
    output = run(make_data(script, "{parallel.tensor_parallel_size}", kind="torchrun") | layout, tmp_path, [[script]])
    assert output.code == 0, output.text
    assert sorted(line for line in output.text.splitlines() if line.startswith("rank")) == [
        "rank 0 ['2']",
        "rank 1 ['2']",
    ]


def test_its_exit_code_is_the_runs(script: str, tmp_path: Path) -> None:
    assert run(make_data(script), tmp_path, [[script]], WANTED_CODE="7").code == 7


def test_only_what_the_nodes_administrator_allowed_is_started(script: str, tmp_path: Path) -> None:
    output = run(make_data("/bin/sh", "-c", "echo started"), tmp_path, [[script, "--safe"]])
    assert output.code == 2
    assert "started" not in output.text.replace("echo started", "")
    assert f"is not allowed on this node; use a command that begins with: {script} --safe" in output.text


def test_a_node_without_a_list_starts_nothing(script: str, tmp_path: Path) -> None:
    output = run_engine(make_data(script), tmp_path, processes=0)
    assert output.code == 2
    assert f"this node allows no commands; ask its administrator to set {ALLOWED_COMMANDS}" in output.text


@pytest.mark.parametrize("content", ["{", '["/bin/true"]', '[["train.py"]]', "[[]]"])
def test_an_invalid_list_allows_nothing(content: str, script: str, tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    output = run_engine(make_data(script), tmp_path, processes=0, variables={ALLOWED_COMMANDS: str(path)})
    assert output.code == 2
    assert str(path) in output.text
    assert "; ask " in output.text


def test_arguments_with_a_common_prefix_are_not_allowed() -> None:
    check_allowed(["/opt/train.py", "--safe", "--more"], [["/opt/train.py", "--safe"]])
    for argv in (["/opt/train.py"], ["/opt/train.py2", "--safe"], ["/opt/train.py", "--safer"], ["--safe"]):
        with pytest.raises(ConfigError, match="not allowed"):
            check_allowed(argv, [["/opt/train.py", "--safe"]])


def test_the_list_is_checked_after_substitution() -> None:
    config = RunConfig.model_validate(make_data("/opt/{model.kind}", "{model.hidden_size}"))
    assert command_argv(config) == ["/opt/gpt", "128"]
    with pytest.raises(ConfigError, match="not allowed"):
        check_allowed(command_argv(config), [["/opt/{model.kind}"]])


def test_a_field_without_a_single_value_is_refused() -> None:
    config = RunConfig.model_validate(make_data("/opt/train.py", "{sharding.device_mapping}"))
    with pytest.raises(ConfigError, match=r"\{sharding.device_mapping\} has no single value"):
        command_argv(config)


def test_a_launcher_that_the_node_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="srun is not installed on this node; install it"):
        launched(RunConfig.model_validate(make_data("/opt/x", kind="srun")), ["/opt/x"], 29500)


def test_the_daemon_starts_one_process_that_checks_and_becomes_the_launcher() -> None:
    config = RunConfig.model_validate(make_data("/opt/train.py", kind="torchrun"))
    assert command(config, Path("config.json"))[1:] == ["-m", "runners.engines.command", "--config", "config.json"]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"parallel": {"engine": "command"}}, "command.argv"),
        (make_data("/opt/train.py", "{model.layers}"), "command.argv"),
        (make_data("/opt/train.py", "a\x00b"), "command.argv.1"),
        ({"launcher": {"kind": "plain"}, "parallel": {"pipeline_parallel_size": 2}}, "launcher.kind"),
    ],
)
def test_invalid_commands_are_refused(data: dict[str, Any], field: str) -> None:
    config, problems = check(data)
    assert config is None
    assert problems[0].field == field
