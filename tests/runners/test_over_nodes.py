"""Every engine that can span nodes trains over three daemons, with every launcher.

CI runs each engine with one launcher. `EVERY_LAUNCHER=1 pytest tests/runners/test_over_nodes.py` runs all combinations,
except srun, which tests/slurm runs with a real Slurm.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import redis

from runners.config import ENGINES, check
from runners.config.launchers import LAUNCHERS
from runners.node.launch.launch import check_span
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.conftest import ROOT
from tests.runners.nodes import Nodes, started

SPANNING = [name for name, row in ENGINES.items() if row.may_span_nodes]
STARTING = [row.name for row in LAUNCHERS.values() if row.starts_ranks and not row.spans_slurm_only]
EVERY = [(engine, launcher) for engine in SPANNING for launcher in STARTING]
CASES = EVERY if os.environ.get("EVERY_LAUNCHER") else list(zip(SPANNING, cycle(STARTING), strict=False))
NODES = 3
REFUSED = "\N{EN DASH}"
SCRIPT = "import os\nos.write(1, f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())\n"
MODEL, TRAIN = SMALL["model"] | {"num_layers": NODES}, SMALL["train"] | {"global_batch_size": 6}
SECTIONS: dict[str, dict[str, Any]] = {
    "pipeline": {"parallel": {"pipeline_parallel_size": NODES}},
    "megatron": {"parallel": {"pipeline_parallel_size": NODES}},
    "hf": {"model": {**MODEL, "implementation": "huggingface"}},
    "sharding": {
        "parallel": {},
        "sharding": {
            "mode": "pipeline",
            "stage_cnt": NODES,
            "accum_degree": 6,
            "device_mapping": {f"stage_{stage}": {"shard_0": f"CPU:{stage}"} for stage in range(NODES)},
        },
    },
}


def configuration(engine: str, launcher: str, script: Path) -> dict[str, Any]:
    """Return a small configuration of an engine with one rank on each node."""
    data = {"model": MODEL, "train": TRAIN, "parallel": {"data_parallel_size": NODES}, **SECTIONS.get(engine, {})}
    data["parallel"] = data["parallel"] | {"engine": engine}
    if ENGINES[engine].is_external:
        data["command"] = {"argv": [str(script)]}
    return data | {"cluster": {"nodes": NODES, "device": "cpu"}, "launcher": {"kind": launcher}}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A command that prints its rank."""
    path = tmp_path_factory.mktemp("command") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, redis_server: str, script: Path) -> Iterator[Nodes]:
    """Three daemons for all cases, which allow the command."""
    redis.Redis.from_url(redis_server).flushall()
    allowed = script.with_name("allowed.json")
    allowed.write_text(json.dumps([[str(script)]]))
    nodes = Nodes(tmp_path_factory.mktemp("nodes"), redis_server, NODES)
    for machine in nodes.machines:
        machine.environment["PARLAB_ALLOWED_COMMANDS"] = str(allowed)
    yield from started(nodes)


def ranks_of(output: bytes) -> set[int]:
    """Return the ranks that have reached their end."""
    lines = output.splitlines()
    events = [json.loads(line) for line in lines if line.startswith(b'{"parlab":')]
    ended = {event["rank"] for event in events if event["event"] == "end"}
    return ended | {int(line.split()[1]) for line in lines if line.startswith(b"rank ")}


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "launcher"), CASES)
def test_an_engine_trains_over_three_nodes(nodes: Nodes, script: Path, engine: str, launcher: str) -> None:
    run = EVERY.index((engine, launcher)) + 1
    nodes.forget()
    nodes.start(configuration(engine, launcher, script), run)
    ends = nodes.ends()
    assert [end.state for end in ends] == ["finished"] * NODES, [end.reason for end in ends]
    assert [ranks_of(nodes.output[node_rank]) for node_rank in range(NODES)] == [{0}, {1}, {2}]
    wait_for(lambda: not any(machine.processes(run) for machine in nodes.machines), "no process is left")


@pytest.mark.slow
def test_a_rank_under_mpirun_that_is_killed_ends_the_run_everywhere_and_is_the_cause(
    nodes: Nodes, script: Path
) -> None:
    run = len(EVERY) + 1
    nodes.forget()
    data = configuration("pipeline", "mpirun", script)
    nodes.start(data | {"train": TRAIN | {"iterations": 100_000}}, run)
    nodes.says(2, b'"event":"step"')
    (victim,) = [rank for rank in nodes.ranks(1, run) if "runners.engines.pipeline" in rank.cmdline()[:4]]
    victim.kill()
    ends = nodes.ends()
    assert (ends[1].state, ends[1].first_failed_rank, ends[1].is_consequence) == ("failed", 1, False)
    assert "killed by signal 9 (SIGKILL) on rank 1" in ends[1].reason
    assert all(end.state == "cancelled" or end.is_consequence for end in (ends[0], ends[2])), ends
    wait_for(lambda: not any(machine.processes(run) for machine in nodes.machines), "no process is left")


def test_the_documented_table_of_engines_and_launchers_over_nodes_is_true() -> None:
    text = (ROOT / "docs" / "understand" / "server-node.md").read_text()
    lines = re.findall(r"^\| (.+) \|$", text[text.index("| engine | ") :], re.MULTILINE)
    heading, *rows = [[cell.strip(" `") for cell in line.split("|")] for line in lines[: 1 + len(ENGINES)]]
    assert heading == ["engine", *(row.name for row in LAUNCHERS.values())]
    assert {row[0] for row in rows} == set(ENGINES)
    documented = {(row[0], launcher): cell for row in rows for launcher, cell in zip(heading[1:], row[1:], strict=True)}
    for (engine, launcher), cell in documented.items():
        data = configuration(engine, launcher, Path("/opt/train.py"))
        config, problems = check(data)
        if config is not None:
            try:
                check_span(config, NODES, is_slurm=False)
            except ValueError as error:
                problems = [error]  # type: ignore[list-item]
        is_slurm_only = LAUNCHERS[launcher].spans_slurm_only and ENGINES[engine].may_span_nodes
        assert cell == ("Slurm" if is_slurm_only else REFUSED if problems else "yes"), (engine, launcher, problems)
