"""A real daemon, real Redis, real processes: orders in, batches out, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from parlab.embedded import free_port
from runners.node.daemon_settings import parse, read_settings
from runners.node.rundir import is_locked
from runners.supervisor.processes import MARKER
from runners.supervisor.spool import SpoolWriter, read_batch
from runners.wire.protocol import EVENT_PREFIX, START_TASK, Report, RunSpec, node_queue, sign
from tests.conftest import SMALL, start_redis
from tests.junk import HUGE, JUNK
from tests.patience import PATIENCE_S, wait_for
from tests.private import readable_by_others
from tests.runners.conftest import KEY, NODE, ROOT, NodeMachine, Server

# A print of two processes into one pipe may mix, since text and newline are two writes; one write does not.
SLEEP = "import os, time; os.write(1, b'here\\n'); time.sleep(600)"
COUNT_SLOWLY = """
    import time
    for n in range(400):
        print(n, flush=True)
        time.sleep(0.03)
"""
# It does not end before the test has opened the gate, see NodeMachine.
COUNT_BEHIND_GATE = """
    import os, time
    for n in range(400):
        print(n, flush=True)
        time.sleep(0.005)
        while n == 300 and not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
            time.sleep(0.01)
"""
NUMBERS = [str(n).encode() for n in range(400)]


# --- orders ----------------------------------------------------------------------------------------------------------


def test_a_run_is_started_and_everything_it_printed_arrives_and_then_its_directory_goes(
    machine: NodeMachine, server: Server
) -> None:
    machine.script(1, "print('hello'); print('world')")
    machine.start_daemon()
    server.start(1)
    report = server.end_of(1)
    assert [report.state for report in server.reports[1, 1]] == ["running", "finished"]
    assert report.exit_code == 0
    assert server.lines(1) == [b"hello", b"world"]
    server.until(lambda: not machine.run_dir(1).exists, "the directory is deleted")


def test_a_cancel_ends_the_run(machine: NodeMachine, server: Server) -> None:
    machine.script(1, SLEEP)
    machine.start_daemon()
    server.start(1)
    server.until(lambda: server.lines(1), "it runs")
    server.cancel(1, reason="cancelled by ada")
    wait_for(lambda: not machine.processes(1), "all processes have ended")
    report = server.end_of(1)
    assert (report.state, report.reason) == ("cancelled", "cancelled by ada")


def test_an_attempt_that_is_sent_twice_starts_once(machine: NodeMachine, server: Server, tmp_path: Path) -> None:
    machine.script(1, f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); print('done')")
    machine.start_daemon()
    server.start(1)
    server.start(1)
    server.end_of(1)
    server.until(lambda: not machine.run_dir(1).exists, "the directory is deleted")
    server.start(1)  # and once more, after everything was stored and deleted
    server.start(1, attempt=2)
    server.end_of(1, attempt=2)
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.slow
def test_the_next_attempt_of_a_run_is_a_run_of_its_own(machine: NodeMachine, server: Server) -> None:
    machine.script(1, "print('again')")
    machine.start_daemon()
    for attempt in (1, 2):
        server.start(1, attempt)
        server.end_of(1, attempt)
        assert server.lines(1, attempt) == [b"again"]


@pytest.mark.slow
def test_a_cancel_that_overtakes_its_start_wins(machine: NodeMachine, server: Server, tmp_path: Path) -> None:
    machine.script(1, f"open({str(tmp_path / 'started')!r}, 'w')")
    machine.start_daemon()
    server.cancel(1, reason="changed my mind")
    server.start(1)
    report = server.end_of(1)
    assert (report.state, report.reason) == ("cancelled", "changed my mind")
    server.until(lambda: not machine.run_dir(1).exists, "the tombstone is deleted")
    server.start(1)
    server.serve(1)
    assert not (tmp_path / "started").exists()


def test_what_is_not_genuine_starts_nothing(machine: NodeMachine, server: Server) -> None:
    machine.script(2, "print('genuine')")
    machine.start_daemon()
    server.start(1, key=b"another key")
    server.start(1, lifetime_s=-1)
    spec = RunSpec(run=1, attempt=1, node="n2", config=SMALL)
    server.send(START_TASK, [sign(spec, KEY)])
    altered = sign(RunSpec(run=9, attempt=1, node=NODE, config=SMALL), KEY)
    altered["payload"] = altered["payload"].replace('"run": 9', '"run": 1')
    server.send(START_TASK, [altered])
    server.send(START_TASK, ["no envelope"])
    server.send(START_TASK, [])
    server.start(2)
    server.end_of(2)
    assert not server.reports[1, 1]
    assert not machine.run_dir(1).exists
    log = machine.log.read_text()
    for reason in ("signature does not match", "expired", "meant for node n2", "not a signed message"):
        assert reason in log


def test_a_configuration_that_cannot_run_here_is_a_failed_run_that_says_why(
    machine: NodeMachine, server: Server
) -> None:
    machine.start_daemon()
    server.start(1, config={**SMALL, "model": {"num_layers": 1}})
    report = server.end_of(1)
    assert report.state == "failed"
    assert "pipeline_parallel_size 2 is greater than num_layers 1; use at most 1 stages" in report.reason


def test_a_training_sees_its_configuration_and_none_of_the_nodes_secrets(machine: NodeMachine, server: Server) -> None:
    machine.script(
        1,
        """
        import json, os, sys
        print(json.load(open(sys.argv[2]))["train"]["global_batch_size"], os.environ["OMP_NUM_THREADS"])
        print([name for name in os.environ if name in ("REDIS_URL", "PARLAB_NODE_KEY")])
        """,
    )
    machine.start_daemon()
    server.start(1, launcher={"threads_per_rank": 2})
    server.end_of(1)
    assert server.lines(1) == [b"4 2", b"[]"]
    assert readable_by_others(machine.state.root) == []


@pytest.mark.slow
def test_the_pipeline_engine_trains_under_torchrun(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon(module="runners.node.daemon")
    server.start(1)
    report = server.end_of(1)
    assert (report.state, report.reason) == ("finished", "")
    running = server.reports[1, 1][0]
    assert "torch.distributed.run" in running.command
    events = [json.loads(line) for line in server.lines(1) if line.startswith(EVENT_PREFIX)]
    steps = [(event["rank"], event["step"]) for event in events if event["event"] == "step"]
    assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in (1, 2, 3, 4)]


@pytest.mark.slow
def test_heartbeats_name_what_the_node_holds(machine: NodeMachine, server: Server) -> None:
    machine.script(1, SLEEP)
    machine.start_daemon()
    server.start(1)
    held = server.until(lambda: server.heartbeats and server.heartbeats[-1].held, "a heartbeat names the run")
    beat = server.heartbeats[-1]
    assert [(run.run, run.attempt, run.alive) for run in held] == [(1, 1, True)]
    assert (beat.node, beat.pool, beat.slots) == (NODE, "default", 1)
    assert beat.hardware["cpu_cores"] >= 1
    server.cancel(1)
    server.end_of(1)
    server.until(lambda: not server.heartbeats[-1].held, "a heartbeat names it no more")


# --- who is killed ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_the_daemon_was_killed_the_next_one_ships_all_output_once_and_in_order(
    machine: NodeMachine, server: Server
) -> None:
    machine.script(1, COUNT_BEHIND_GATE)
    daemon = machine.start_daemon()
    server.start(1)
    server.until(lambda: len(server.lines(1)) > 20, "some output has arrived")
    os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()
    server.serve(0.5)
    assert machine.processes(1), "the run lives on"
    machine.open_gate()
    machine.start_daemon()
    assert server.end_of(1).state == "finished"
    assert server.lines(1) == NUMBERS
    assert len(server.batches) > 2


@pytest.mark.slow
def test_a_run_that_ended_while_no_daemon_lived_is_shipped_by_the_next(machine: NodeMachine, server: Server) -> None:
    machine.script(1, COUNT_BEHIND_GATE)
    daemon = machine.start_daemon()
    server.start(1)
    machine.supervisor(1)
    daemon.kill()
    daemon.wait()
    machine.open_gate()
    wait_for(lambda: not machine.run_dir(1).is_alive, "the run has ended")
    machine.start_daemon()
    assert server.end_of(1).state == "finished"
    assert server.lines(1) == NUMBERS


@pytest.mark.slow
def test_sigterm_stops_the_daemon_and_runs_go_on(machine: NodeMachine, server: Server) -> None:
    machine.script(1, COUNT_BEHIND_GATE)
    daemon = machine.start_daemon()
    server.start(1)
    server.until(lambda: server.lines(1), "it runs")
    daemon.terminate()
    assert daemon.wait(PATIENCE_S) == 0
    assert machine.run_dir(1).is_alive
    machine.open_gate()
    machine.start_daemon()
    assert server.end_of(1).state == "finished"
    assert server.lines(1) == NUMBERS


def test_a_killed_supervisor_means_lost_and_no_process_survives(machine: NodeMachine, server: Server) -> None:
    machine.script(
        1,
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
        os.write(1, b'here\\n')
        time.sleep(600)
        """,
    )
    machine.start_daemon()
    server.start(1)
    server.until(lambda: len(server.lines(1)) == 2, "both processes run")
    machine.supervisor(1).kill()
    wait_for(lambda: not machine.processes(1), "all processes have ended")
    report = server.end_of(1)
    assert report.state == "lost"
    assert "supervisor" in report.reason
    assert server.lines(1) == [b"here", b"here"]


@pytest.mark.slow
def test_a_supervisor_killed_while_no_daemon_lived_means_lost_at_the_next_start(
    machine: NodeMachine, server: Server
) -> None:
    machine.script(1, "import os\nif os.fork() == 0: os.setsid()\n" + SLEEP)
    daemon = machine.start_daemon()
    server.start(1)
    server.until(lambda: len(server.lines(1)) == 2, "both processes run")
    daemon.kill()
    daemon.wait()
    machine.supervisor(1).kill()
    wait_for(lambda: len(machine.processes(1)) == 1, "only the one that left the group lives")
    machine.start_daemon()
    assert server.end_of(1).state == "lost"
    assert machine.processes() == []


def test_marked_processes_without_a_run_directory_are_ended_at_the_start(machine: NodeMachine) -> None:
    marker = {MARKER: f"{machine.state.id}:5/1"}
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, **marker})
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, MARKER: "another:5/1"}
    )
    try:
        wait_for(lambda: machine.processes(5), "the stray is visible")
        machine.start_daemon()
        assert stray.wait(PATIENCE_S) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (stray, other):
            process.kill()
            process.wait()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A Redis that a test may kill; append to the list what it starts."""
    port = free_port()
    directory = tmp_path / "redis"
    directory.mkdir()
    processes = [start_redis(port, directory)]
    yield f"redis://127.0.0.1:{port}/0", processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_redis_is_killed_and_comes_back_and_nothing_is_lost_or_doubled(
    tmp_path: Path, own_redis: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    url, redis_processes = own_redis
    port, directory = urlsplit(url).port or 0, tmp_path / "redis"
    (tmp_path / "node").mkdir()
    machine, server = NodeMachine(tmp_path / "node", url), Server(url)
    try:
        machine.script(1, COUNT_SLOWLY)
        machine.script(2, "print('after')")
        daemon = machine.start_daemon()
        server.start(1)
        server.until(lambda: len(server.lines(1)) > 20, "some output has arrived")
        for _ in range(3):
            # The daemon is busy with answers when Redis dies: one of them is just being taken from the queue.
            for _ in range(500):
                server.acknowledge(99, 1, 1)
            redis_processes[-1].kill()
            redis_processes[-1].wait()
            server.serve(0.3)
            redis_processes.append(start_redis(port, directory))
            server.serve(1)
        redis_processes[-1].kill()
        redis_processes[-1].wait()
        before, began = psutil.Process(daemon.pid).cpu_times(), time.monotonic()
        server.serve(2)
        after, waited_s = psutil.Process(daemon.pid).cpu_times(), time.monotonic() - began
        busy_s = after.user + after.system - before.user - before.system
        redis_processes.append(start_redis(port, directory))
        assert server.end_of(1).state == "finished"
        assert server.lines(1) == NUMBERS
        # Orders come through again, too.
        server.start(2)
        assert server.end_of(2).state == "finished"
        assert busy_s < 0.8 * waited_s, f"the daemon used {busy_s:.1f} s of {waited_s:.1f} s without Redis"
    finally:
        server.close()
        left = machine.close()
        print(machine.log.read_text()[-6000:])
    assert left == []


@pytest.mark.slow
def test_a_daemon_starts_without_redis_stops_and_takes_orders_once_redis_is_there(
    tmp_path: Path,
) -> None:
    port, directory = free_port(), tmp_path / "redis"
    directory.mkdir()
    url = f"redis://127.0.0.1:{port}/0"
    machine, server = NodeMachine(tmp_path, url), Server(url)
    machine.script(1, "print('at last')")
    redis_process = None
    try:
        daemon = machine.start_daemon()
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
        machine.start_daemon()
        redis_process = start_redis(port, directory)
        server.start(1)
        assert server.end_of(1).state == "finished"
    finally:
        server.close()
        left = machine.close()
        if redis_process is not None:
            redis_process.kill()
            redis_process.wait()
    assert left == []


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_attempt_that_the_server_does_not_know_is_ended_and_put_aside(machine: NodeMachine, server: Server) -> None:
    machine.script(1, SLEEP)
    machine.start_daemon()
    server.forgotten.add(1)
    server.start(1)
    rejected = machine.state_dir / "rejected" / "1-1"
    server.until(rejected.exists, "the run is put aside")
    assert machine.processes(1) == []
    assert read_batch(rejected / "spool", 0).reports[0].state == "prepared"
    sent = len(server.batches)
    server.serve(1)
    assert len(server.batches) == sent
    assert "unknown to the server" in machine.log.read_text()


@pytest.mark.slow
def test_a_disk_without_room_for_a_run_is_reported_from_memory(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon()
    # Whoever is root ignores permissions, but nobody can make a directory in a file.
    runs = machine.state_dir / "runs"
    runs.rmdir()
    runs.touch()
    server.start(1)
    report = server.end_of(1)
    assert report.state == "failed"
    assert "node n1 cannot start the run" in report.reason
    runs.unlink()


# --- the command line ------------------------------------------------------------------------------------------------


def run_daemon(machine: NodeMachine, *arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in machine.environment.items() if name != without}
    return subprocess.run(
        [sys.executable, "-m", "runners.node.daemon", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.slow
def test_a_second_daemon_on_the_same_directory_is_refused_and_named(machine: NodeMachine) -> None:
    first = machine.start_daemon()
    second = run_daemon(machine, *machine.arguments())
    assert second.returncode == 2
    assert f"daemon {first.pid} already uses {machine.state_dir}; stop it" in second.stderr


@pytest.mark.slow
def test_another_daemon_with_the_name_of_the_node_takes_none_of_its_orders(
    machine: NodeMachine, server: Server, tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "twin").mkdir()
    twin = NodeMachine(tmp_path / "twin", redis_url)
    runs = range(1, 9)
    for run in runs:
        machine.script(run, "print('hello')")
    machine.start_daemon()
    server.queue = node_queue(NODE, machine.state.id)
    try:
        twin.start_daemon()
        for run in runs:
            server.start(run)
        for run in runs:
            assert server.end_of(run).exit_code == 0
    finally:
        assert not twin.close()
    assert "run 1 " in machine.log.read_text()
    assert re.search(r"run \d", twin.log.read_text()) is None


def test_what_is_missing_is_said_in_one_line(machine: NodeMachine) -> None:
    done = run_daemon(machine, *machine.arguments(), without="REDIS_URL")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "REDIS_URL is not set; set it to" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "without", "message"),
    [
        (["--node", "a b"], "", "invalid --node 'a b'"),
        (["--pool", "Big"], "", "invalid --pool 'Big'"),
        (["--slots", "0"], "", "--slots 0 is less than 1"),
        ([], "PARLAB_NODE_KEY", "PARLAB_NODE_KEY is not set; set it to"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(
    machine: NodeMachine, arguments: list[str], without: str, message: str
) -> None:
    environment = {name: value for name, value in machine.environment.items() if name != without}
    with pytest.raises(ValueError, match=message):
        read_settings(parse(machine.arguments(*arguments)), environment)


@pytest.mark.slow
def test_stop_all_ends_every_run_and_the_next_daemon_says_so_to_the_server(
    machine: NodeMachine, server: Server
) -> None:
    machine.script(1, SLEEP)
    machine.script(2, SLEEP)
    daemon = machine.start_daemon()
    for run in (1, 2):
        server.start(run)
        server.until(partial(server.lines, run), "it runs")
    daemon.terminate()
    daemon.wait(PATIENCE_S)
    done = run_daemon(machine, "stop-all", "--state-dir", str(machine.state_dir))
    assert done.returncode == 0, done.stderr
    assert machine.processes() == []
    assert not any(is_locked(run.lock) for run in machine.state.runs())
    machine.start_daemon()
    assert {server.end_of(run).reason for run in (1, 2)} == {"the node's daemon was stopped"}


def test_a_cancel_file_decides_what_a_dead_supervisor_could_not_report(machine: NodeMachine, server: Server) -> None:
    run = machine.state.put_in_place(machine.state.prepare(1, 1))
    SpoolWriter(run.spool).append_report(Report(state="running", at=1.0))
    run.cancel("cancelled by ada")
    machine.start_daemon()
    report = server.end_of(1)
    assert (report.state, report.reason) == ("cancelled", "cancelled by ada")


@pytest.mark.slow
def test_a_daemon_waits_while_redis_refuses_to_write(machine: NodeMachine, server: Server) -> None:
    daemon = machine.start_daemon()
    server.until(lambda: server.heartbeats, "the node is online")
    client: Any = redis.Redis.from_url(server.url, socket_timeout=PATIENCE_S)
    client.config_set("min-replicas-to-write", 1)  # refuses like a Redis whose disk is full
    wait_for(lambda: "NOREPLICAS" in machine.log.read_text(), "the daemon has noticed")
    client.config_set("min-replicas-to-write", 0)
    machine.script(1, "print('still here')")
    server.start(1)
    assert server.end_of(1).state == "finished"
    assert daemon.poll() is None


@pytest.mark.slow
def test_a_daemon_survives_everything_and_reports_what_it_refused(machine: NodeMachine, server: Server) -> None:
    daemon = machine.start_daemon()
    client: Any = redis.Redis.from_url(server.url, socket_timeout=PATIENCE_S)
    client.lpush(node_queue(NODE), HUGE)
    for raw in JUNK.values():
        client.lpush(node_queue(NODE), raw)
    machine.script(1, "print('still here')")
    server.start(1)
    assert server.end_of(1).state == "finished"

    def refused() -> int:
        return sum(each.count for heartbeat in server.heartbeats for each in heartbeat.refused)

    server.until(lambda: refused() > len(JUNK), "the node reports all refused messages")
    assert daemon.poll() is None
