"""The checks of a campaign find what they look for."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from parlab.embedded import free_port
from parlab.ingest.batches.output import output_append
from parlab.lab.models import Attempt, Experiment
from tests.faults import campaign, injected, kinds, read_only, rows, stages
from tests.faults.disks import Disk
from tests.faults.kinds import Fault, Scene
from tests.faults.proxy import Proxy
from tests.faults.reporter import EXPERIMENT
from tests.faults.stack import NODES
from tests.faults.ticker import loss_of
from tests.faults.workload import RANKS, Workload, Wrong
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """A workload without processes."""
    stack: Any = SimpleNamespace(witness=tmp_path, daemons=[], command=[])
    return Workload(stack)


def line(rank: int, step: int, loss: float | None = None) -> bytes:
    event = {"parlab": 1, "t": 1.0, "rank": rank, "event": "step", "step": step}
    value = loss_of(rank, step) if loss is None else loss
    return json.dumps({**event, "step_time_s": 0.1, "loss": value}, separators=(",", ":")).encode() + b"\n"


WHOLE = [line(rank, step) for step in (1, 2, 3) for rank in range(RANKS)]


def stored(workload: Workload, make_attempt: Callable[..., Attempt], lines: list[bytes]) -> Attempt:
    """Store lines as the output of an attempt whose ranks have printed three steps."""
    attempt = make_attempt(state="failed")
    for rank in range(RANKS):
        (workload.stack.witness / f"{attempt.run_id}-1-{rank}").write_text("3")
    output_append(attempt, b"".join(lines))
    return attempt


def test_events_that_are_all_there_once_are_counted(workload: Workload, make_attempt: Callable[..., Attempt]) -> None:
    attempt = stored(workload, make_attempt, WHOLE)
    workload.check_ended(attempt, spooled={})
    assert workload.tallies[attempt.run_id, 1] == (6, 6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (WHOLE[:2] + WHOLE[3:], "are not 1, 2, 3"),
        (WHOLE + WHOLE[-1:], "are not 1, 2, 3"),
        ([*WHOLE[:-1], line(1, 3, 0.5)], "values do not belong"),
        (WHOLE[:-1], "printed 3, had to be stored 3, in the log 2"),
        ([*WHOLE, line(0, 4), line(0, 5)], "printed 3, had to be stored 3, in the log 5"),
    ],
)
def test_what_is_lost_doubled_or_invented_is_wrong(
    workload: Workload, make_attempt: Callable[..., Attempt], lines: list[bytes], message: str
) -> None:
    attempt = stored(workload, make_attempt, lines)
    with pytest.raises(Wrong, match=message):
        workload.check_ended(attempt, spooled={})


def test_of_a_killed_supervisor_only_what_was_in_its_spool_must_be_stored(
    workload: Workload, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = stored(workload, make_attempt, WHOLE[:-1])
    workload.check_ended(attempt, spooled={1: 2})
    with pytest.raises(Wrong):
        workload.check_ended(attempt, spooled={1: 3})


def test_a_fault_that_this_machine_cannot_have_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stack: Any = SimpleNamespace(disks={}, database=None, cluster=None)
    monkeypatch.setattr(injected, "may_limit_memory", lambda: True)
    reasons = injected.impossible(["full-disk", "database", "out-of-memory", "cut"], stack)
    assert set(reasons) == {"full-disk", "database"}
    assert "--database postgres" in reasons["database"]


def test_a_full_disk_has_room_again_once_it_is_freed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", size_mib=1)
    disk.mount()
    if not disk.is_mounted:
        pytest.skip("mounting a tmpfs needs root")
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(bytes(8192))
        disk.free()
        (disk.path / "more").write_bytes(bytes(8192))
    finally:
        disk.unmount()


def test_nothing_can_be_written_to_a_disk_that_is_read_only_until_it_is_writable_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", size_mib=1)
    disk.mount()
    if not disk.is_mounted:
        pytest.skip("mounting a tmpfs needs root")
    try:
        disk.make_read_only()
        with pytest.raises(OSError, match="Read-only"):
            (disk.path / "more").write_bytes(b"1")
        disk.free()
        with (disk.path / "more").open("wb"), pytest.raises(OSError, match="busy"):
            disk.make_read_only()
    finally:
        disk.unmount()


def test_a_disk_that_is_read_only_is_not_filled_as_well(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    monkeypatch.setattr(read_only, "kill_node", lambda scene, names: Fault(f"node {names[0]}"))
    monkeypatch.setattr(read_only, "_restart_read_only", lambda stack, name: None)
    stack: Any = SimpleNamespace(disks=dict.fromkeys(["database", "redis", *NODES], SimpleNamespace(is_mounted=True)))
    scene = Scene(stack, workload, random.Random(1), victims={"database", "redis", *NODES[1:], "worker"})
    assert read_only.restart_on_read_only_disk(scene) is not None
    assert scene.choose([f"disk of {NODES[0]}"]) is None


def test_a_rank_is_killed_and_no_run_cancelled_while_the_database_is_away(
    workload: Workload, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    Experiment.objects.filter(pk=workload.experiment.pk).delete()
    workload.experiment = attempt.run.experiment
    pid = workload.stack.witness / f"{attempt.run_id}-1-0.pid"
    with subprocess.Popen(["sleep", "1000"]) as rank:
        scene = Scene(workload.stack, workload, random.Random(1))
        scene.victims.add("database")
        for number in range(RANKS):
            pid.with_name(f"{attempt.run_id}-1-{number}.pid").write_text(str(rank.pid))
        with CaptureQueriesContext(connection) as queries:
            assert kinds.cancel(scene) is None
            assert kinds.kill_rank(scene) is not None
        assert rank.wait(PATIENCE_S) == -signal.SIGKILL
    assert not queries.captured_queries


def test_campaigns_add_up_and_a_repeated_fault_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "build" / "faults.jsonl"
    for number, recovered_s in ((1, 2.0), (2, 50.0), (2, 4.0), (101, 31.0)):
        rows.append(path, rows.Row(number, "daemon", "n0", recovered_s, None, seed=1, database="sqlite"))
    rows.append(path, rows.Row(1, "daemon", "n0", 9.0, 7.0, wrong=["lost"], seed=1, database="postgres"))
    assert rows.table(rows.read(path)).splitlines()[-1] == "| daemon | 4 | 1 | 1 | 6.5 / 31.0 | 7.0 / 7.0 |"


def test_a_campaign_goes_on_after_a_stage_that_has_failed_and_after_its_own_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faults.jsonl"
    wanted: list[tuple[int, int]] = []

    def stage(_: Any, first: int, count: int) -> int:
        wanted.append((first, count))
        is_whole = len(wanted) != 2  # the second one fails after a single fault
        for number in range(first, first + (count if is_whole else 1)):
            rows.append(path, rows.Row(number, "daemon", "n0", 2.0, None, seed=7))
        if is_whole:
            rows.append(
                path, rows.Row(first + count, rows.END, "", 9.0, 1.0, seed=7, faults=count, printed=5, stored=5)
            )
        return int(not is_whole)

    monkeypatch.setattr(stages, "_stage", stage)
    arguments = {"rows": path, "seed": 7, "database": "", "stage": 3, "first": 1, "kills": 8, "resume": False}
    assert stages.run(argparse.Namespace(**arguments)) == 0
    assert wanted == [(1, 3), (4, 3), (5, 3), (8, 1)]
    assert "8 faults, 0 wrong, 0 over 30 s; 15 of 15 events" in capsys.readouterr().out
    assert stages.run(argparse.Namespace(**arguments | {"resume": True, "kills": 10})) == 0
    assert wanted[4:] == [(9, 2)]
    monkeypatch.setattr(stages, "_stage", lambda *_: 1)
    assert stages.run(argparse.Namespace(**arguments | {"resume": True, "kills": 11})) == 1


def test_a_moment_that_lasts_long_begins_with_a_fault_that_does(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, str]] = []

    def strike(kind: str, is_possible: bool) -> kinds.Strike:
        def struck(scene: Scene) -> Fault | None:
            asked.append((scene.is_long, kind))
            return Fault(kind) if is_possible else None

        return struck

    possible = {"node": True, "worker": True, "cut": False}
    monkeypatch.setattr(campaign, "KINDS", {kind: strike(kind, each) for kind, each in possible.items()})
    stack: Any = workload.stack
    for share, first in ((1.0, "node"), (0.0, "worker")):
        monkeypatch.setattr(campaign, "LONG_SHARE", share)
        asked.clear()
        struck = campaign.Campaign(stack, workload, random.Random(1), tuple(possible))._strike(8)
        assert len(struck) == 8
        assert asked.count((bool(share), "cut")) == 1
        assert {kind for kind, _ in struck} == ({"node", "worker"} if share else {"worker"})
        assert struck[0][0] == first


@pytest.mark.parametrize("steps", [[1, 2, 4], [1, 2, 2, 3]])
def test_a_step_reported_over_http_that_is_lost_or_doubled_is_wrong(
    workload: Workload, make_attempt: Callable[..., Attempt], steps: list[int]
) -> None:
    attempt = make_attempt(state="running")
    Experiment.objects.filter(pk=attempt.run.experiment_id).update(name=EXPERIMENT)
    output_append(attempt, b"".join(line(0, step, float(step)) for step in steps))
    with pytest.raises(Wrong, match="are not 1, 2, 3"):
        workload._reported_steps()


def test_faults_of_one_moment_last_at_the_same_time(workload: Workload) -> None:
    repaired: list[str] = []
    faults = [
        Fault("long", lambda: repaired.append("long"), hold_s=campaign.MAX_PAUSE_S + 0.1),
        Fault("short", lambda: repaired.append("short")),
    ]
    stack: Any = workload.stack
    campaign.Campaign(stack, workload, random.Random(1), ("daemon",))._repair(faults, set(), time.monotonic())
    assert repaired == ["short", "long"]


def test_a_recovery_names_what_it_waited_for(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["run 1 attempt 2 rank 0 has made 0 steps", "run 1 attempt 2 rank 0 has made 7 steps", "web", ""])
    monkeypatch.setattr(workload, "relaunch_ended", lambda: None)
    monkeypatch.setattr(workload, "why_unsettled", lambda least: next(reasons))
    stack: Any = workload.stack
    waits: dict[str, float] = {}
    lasted_s = campaign.Campaign(stack, workload, random.Random(1), ("web",))._settle({}, time.monotonic(), waits)
    assert list(waits) == ["run 1 attempt 2 rank 0 has some steps", "web"]
    assert 0 < sum(waits.values()) <= lasted_s


def test_a_campaign_waits_for_ends_while_the_database_is_away(
    workload: Workload, make_attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = make_attempt(state="failed")
    stack: Any = workload.stack
    stack.processes = list
    away = iter([OperationalError("the server closed the connection"), InterfaceError("the connection is closed")])
    closed: list[bool] = []

    def states(field: str, *, flat: bool) -> Any:
        error = next(away, None)
        if error is not None:
            raise error
        return Attempt.objects.all().values_list(field, flat=flat)

    monkeypatch.setattr(Attempt.objects, "values_list", states, raising=False)
    monkeypatch.setattr(campaign, "connection", SimpleNamespace(close=lambda: closed.append(True)))
    waits = campaign.Campaign(stack, workload, random.Random(1), ("database",))
    assert waits._repair([], {(ended.run_id, ended.number)}, time.monotonic()) > 0
    assert closed == [True, True]


def test_a_proxy_that_is_cut_refuses_until_it_is_restored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        proxy = Proxy(free_port(), target.getsockname()[1])
        proxy.start()
        try:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as before:
                behind, _ = target.accept()
                before.sendall(b"hello")
                assert behind.recv(5) == b"hello"
                proxy.cut()
                with contextlib.suppress(ConnectionError):
                    assert before.recv(1) == b""
                behind.close()
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as refused:
                assert refused.recv(1) == b""
            proxy.restore()
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as after:
                behind, _ = target.accept()
                behind.sendall(b"back")
                behind.close()
                assert after.recv(4) == b"back"
        finally:
            proxy.stop()
