"""What Slurm prints, as jobs, partitions, places and endings; configurations as batch scripts. No cluster is needed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runners.config import RunConfig
from runners.node.jobs.pool import Pace
from runners.node.rundir import RunDir
from runners.node.slurm import member, queue, submit
from runners.node.slurm.pool import Pool, read_pool
from runners.node.slurm.queue import End, Job, Partition
from runners.supervisor.processes import MARKER
from tests.conftest import SMALL

SQUEUE = """\
12|PENDING|gpu|4000||2026-11-22 10:00|Priority|a|name
13|PENDING|gpu|5000||N/A|(Resources)|b
14_[1-8]|PENDING|gpu|9000||N/A|Priority|array
15|RUNNING|debug|1|n[1-3]|2026-11-22 09:00|None|c
16|PENDING|debug|1||N/A|(launch failed requeued held)|d
"""
SHOWN = (
    "JobId=7 JobName=a name JobState=RUNNING= UserId=ada(1000) GroupId=ada(1000) Priority=1 Account=x QOS=normal"
    " JobState=TIMEOUT Reason=TimeLimit Dependency=(null) ExitCode=0:15 TimeLimit=1-02:03:04 NodeList=n[1-3]"
)

GPU = Partition("gpu", True, 3600.0, 16, None)


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({**SMALL, **sections})


def test_jobs_are_read_and_placed_by_priority() -> None:
    jobs = queue.jobs_of(SQUEUE)
    assert [job.id for job in jobs] == [12, 13, 15, 16]
    assert jobs[0] == Job(12, "PENDING", "gpu", 4000, "", "2026-11-22 10:00", "Priority", "a|name")
    places = queue.places(job for job in jobs if job.is_pending)
    assert places == {12: (2, 2), 13: (1, 2), 16: (1, 1)}
    offset = datetime(2026, 11, 22, 10).astimezone().isoformat()[-6:]
    assert queue.waiting_text(jobs[0], places[12]) == (
        f"Slurm job 12 is PENDING: Priority, place 2 of 2 in partition gpu, expected to start 2026-11-22 10:00{offset}"
    )


def test_the_name_of_a_job_cannot_pretend_a_state() -> None:
    assert queue.end_of(SHOWN) == End(7, "TIMEOUT", "TimeLimit", 0, 15, "n[1-3]", "1-02:03:04")
    assert queue.end_of("slurm_load_jobs error: Invalid job id specified") is None


def test_an_accounted_end_is_that_of_the_last_job_of_the_name() -> None:
    text = "3|FAILED|1:0|n1|None|x\n4|CANCELLED by 1000|0:15|None assigned|None|x\n5|COMPLETED|0:0|n2|None|y\n"
    assert queue.accounted_end(text, "x") == End(4, "CANCELLED", "", 0, 15, "", "")
    assert queue.accounted_end(text, "z") is None


def test_partitions_and_their_gpus_are_read() -> None:
    text = (
        "PartitionName=gpu Default=YES MaxNodes=UNLIMITED MaxTime=2-00:00:00 State=UP TotalNodes=16\n"
        "PartitionName=old MaxNodes=2 MaxTime=UNLIMITED State=DOWN TotalNodes=4"
    )
    assert queue.partitions_of(text) == {
        "gpu": Partition("gpu", True, 172800.0, 16, None),
        "old": Partition("old", False, None, 4, 2),
    }
    assert queue.gpus_of("(null)\ngpu:4(S:0-1)\ngpu:a100:2(S:0,1),gpu:v100:3,craynetwork:4") == 5
    assert queue.gpus_of("") == 0


@pytest.mark.parametrize(
    ("end", "has_started", "state", "text"),
    [
        (
            End(7, "TIMEOUT", "", 0, 1, "n1", "01:00:00"),
            True,
            "time-limit",
            "ended as TIMEOUT: its time limit 01:00:00",
        ),
        (End(7, "NODE_FAIL", "", 0, 0, "n1", ""), True, "lost", "one of its nodes failed"),
        (End(7, "OUT_OF_MEMORY", "", 0, 125, "n1", ""), True, "oom", "raise slurm.memory_mib"),
        (End(7, "FAILED", "", 137, 0, "n1", ""), True, "lost", "exit code 137: its supervisor was killed"),
        (End(7, "FAILED", "", 2, 0, "n1", ""), False, "failed", "exit code 2 before its supervisor started"),
        (End(7, "FAILED", "", 90, 0, "n1", ""), False, "failed", "a node does not see /shared/12-1"),
        (End(7, "CANCELLED", "", 91, 0, "n1", ""), True, "lost", "a second time (requeue)"),
    ],
)
def test_endings_are_in_slurms_words(end: End, has_started: bool, state: str, text: str) -> None:
    words = queue.ending(end, "/shared/12-1", has_started=has_started)
    assert words.state.value == state
    assert words.text.startswith("Slurm job 7 on n1 ended as ")
    assert text in words.text


def test_a_job_that_a_failed_prolog_has_cancelled_is_lost() -> None:
    drained = queue.drained_of(2 * "n1|drained|parlab: GPU 0: XID 79\n" + "n2|idle|none\nn3|draining*|Prolog error\n")
    assert drained == "n1 (parlab: GPU 0: XID 79), n3 (Prolog error)"
    end = End(7, "CANCELLED", "", 0, 15, "n[1,3]", "")
    lost = queue.ending(end, "/shared/12-1", has_started=False, drained=drained)
    assert lost.state == "lost"
    assert lost.text.endswith(f"ended as CANCELLED before its supervisor started: drained meanwhile: {drained}")
    assert queue.ending(end, "/shared/12-1", has_started=True, drained=drained).state == "cancelled", "by a person"
    assert queue.drained_of("n2|idle|none\n") == ""


def test_the_script_has_what_the_configuration_asks_for() -> None:
    slurm = {
        "account": "lab",
        "qos": "high",
        "constraint": "a100&nvlink",
        "gres": "gpu:a100:2",
        "time_limit_s": 61,
        "memory_mib": 2048,
        "exclusive": True,
    }
    order = submit.Order("parlab-x-12-1", Path("/shared/a b/jobs/12-1"), Path("/shared/a b/runs/12-1"), GPU)
    text = submit.script(config(slurm=slurm, launcher={"threads_per_rank": 4}), order)
    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert options == [
        "job-name=parlab-x-12-1",
        "partition=gpu",
        "nodes=1",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "time=2",
        "account=lab",
        "qos=high",
        "constraint=a100&nvlink",
        "gres=gpu:a100:2",
        "mem=2048M",
        "exclusive",
        "no-requeue",
        "chdir=/",
        "output=/dev/null",
    ]
    assert "cd '/shared/a b/jobs/12-1' 2>/dev/null || exit 90" in text
    assert f'export PYTHONPATH={submit.PACKAGE_ROOT}"${{PYTHONPATH:+:$PYTHONPATH}}"' in text
    assert text.rstrip().endswith("-m runners.node.slurm.member '/shared/a b/runs/12-1'")


@pytest.mark.parametrize(
    ("command", "code", "is_broken"), [("exit 0", 0, False), ("exit 90", 90, True), ("kill -9 $$", 137, True)]
)
def test_a_member_that_dies_leaves_its_exit_code_and_breaks_the_job(
    tmp_path: Path, command: str, code: int, is_broken: bool
) -> None:
    order = submit.Order("x", tmp_path, Path("/r"), GPU)
    words = shlex.split(submit.script(config(), order).splitlines()[-1])
    shell = words[words.index("sh") : words.index(sys.executable)]
    assert subprocess.run([*shell, "sh", "-c", command], check=False).returncode == code
    assert (tmp_path / "broken").exists() == is_broken
    shell[-1] = str(tmp_path / "absent" / "broken")  # a node that does not see the directory
    assert subprocess.run([*shell, "sh", "-c", command], check=False).returncode == code


def test_a_member_that_dies_removes_its_container_which_no_job_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = {"runtime": "docker", "image": "img"}
    order = submit.Order("x", tmp_path, tmp_path / "12-1", GPU)
    words = shlex.split(submit.script(config(launcher={"container": container}), order).splitlines()[-1])
    shell = words[words.index("sh") : words.index(sys.executable)]
    killed = ["sh", "-c", '[ "$1" = --clean ] && : > cleaned; kill -9 $$', "sh"]
    assert subprocess.run([*shell, *killed], check=False, cwd=tmp_path).returncode == 137
    assert (tmp_path / "cleaned").exists()

    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "12-1").mkdir()
    RunDir(tmp_path / "12-1").write_launch({"container": "docker", "environment": {MARKER: "a:12/1"}})
    assert member.main([str(tmp_path / "12-1"), "--clean"]) == 0
    assert (tmp_path / "called").read_text() == "rm --force parlab-a-12-1\n"


def test_gpus_are_requested_for_a_run_that_needs_them() -> None:
    order = submit.Order("x", Path("/j"), Path("/r"), GPU)
    assert "--gres=gpu:2\n" in submit.script(config(cluster={"device": "cuda"}), order)
    assert "--gres" not in submit.script(config(), order)


@pytest.mark.parametrize(
    ("sections", "field", "text"),
    [
        ({"slurm": {"partition": "x"}}, "slurm.partition", "may not use partition x; use gpu or old or gone"),
        ({"slurm": {"partition": "gone"}}, "slurm.partition", "Slurm has no partition gone; use one of gpu, old"),
        ({"slurm": {"partition": "old"}}, "slurm.partition", "partition old is not up"),
        ({"slurm": {"time_limit_s": 3700}}, "slurm.time_limit_s", "above the limit of partition gpu, 60 min"),
        ({"launcher": {"timeout_s": 3700}}, "launcher.timeout_s", "above the limit of partition gpu, 60 min"),
    ],
)
def test_a_run_that_the_pool_cannot_take_has_the_field_and_a_remedy(
    sections: dict[str, Any], field: str, text: str
) -> None:
    partitions = {"gpu": GPU, "old": Partition("old", False, None, 4, 2)}
    (problem, *_) = submit.problems(config(**sections), ["gpu", "old", "gone"], partitions)
    assert problem.field == field
    assert text in problem.message


def test_a_derived_time_limit_stays_within_that_of_the_partition() -> None:
    order = submit.Order("x", Path("/j"), Path("/r"), GPU)
    assert "--time=60\n" in submit.script(config(launcher={"timeout_s": 3600}), order)
    assert "--time=32\n" in submit.script(config(launcher={"timeout_s": 1800}), order)
    assert "--time=41\n" in submit.script(config(launcher={"timeout_s": 1800, "grace_s": 600}), order)


@pytest.mark.parametrize("value", ["a\nb", "a b", "--wrap=x", "a;b"])
def test_no_value_can_add_a_line_to_the_script(value: str) -> None:
    for field in ("partition", "account", "qos", "constraint", "gres"):
        with pytest.raises(ValueError, match=field):
            config(slurm={field: value})


def test_settings_of_the_daemon_are_checked_with_name_value_and_remedy() -> None:
    environment = {"PARLAB_SLURM_POLL_S": "10", "PARLAB_SLURM_SETTLE_S": "", "PARLAB_SLURM_GRACE_S": "60"}
    expected = Pool(("gpu", "debug"), Pace(away_grace_s=60, poll_s=10, max_jobs=8))
    assert read_pool(True, "gpu,debug", environment, slots=8) == expected
    assert read_pool(False, "", {}) is None
    assert read_pool(True, "gpu", {"PARLAB_SLURM_SHIP": "login"}) == Pool(
        ("gpu",), Pace(max_jobs=1, ships_from_nodes=False)
    )
    for arguments, message in [
        ((True, "", {}), "--slurm needs --partition"),
        ((False, "gpu", {}), "--partition gpu has no effect without --slurm"),
        ((True, "gpu", {"PARLAB_SLURM_POLL_S": "soon"}), "invalid PARLAB_SLURM_POLL_S 'soon'; use a number of seconds"),
        ((True, "gpu", {"PARLAB_SLURM_GRACE_S": "-1"}), "invalid PARLAB_SLURM_GRACE_S '-1'"),
        ((True, "gpu", {"PARLAB_SLURM_SETTLE_S": "nan"}), "invalid PARLAB_SLURM_SETTLE_S 'nan'"),
        ((True, "gpu", {"PARLAB_SLURM_SHIP": "me"}), "invalid PARLAB_SLURM_SHIP 'me'; use auto"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_pool(*arguments)
