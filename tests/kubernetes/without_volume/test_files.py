"""What passes between a controller and a pod that shares no volume with it, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.kubernetes.event_log import EventLog
from runners.node.kubernetes.pool import Pool, Volume
from runners.node.kubernetes.without_volume.end import read_end, write_end
from runners.node.kubernetes.without_volume.exchange import Exchange, ServerAnswers, write_note
from runners.node.kubernetes.without_volume.order import PodOrder, order_text, run_of, write_run
from runners.node.kubernetes.without_volume.word import Listener, word_of
from runners.supervisor import spool
from runners.supervisor.shipping import BrokerAway
from runners.supervisor.spool import SpoolWriter
from runners.wire.protocol import Acknowledge, Go, Peer, PodNote, Report
from runners.wire.trust import Key

LONG = 20_000


def made(root: Path, node_rank: int = 0) -> JobDir:
    """Return the directory of a run at its controller."""
    state = JobStateDir(root)
    run = state.find(7, 1, node_rank)
    run.path.mkdir()
    run.spec.write_text(json.dumps({"run": 7, "node_rank": node_rank}))
    run.config.write_text("{}")
    run.write_launch({"environment": {"A": "1"}, "first_rank": node_rank, "same": LONG * "x"})
    return run


def test_the_secret_has_what_all_pods_share_once(tmp_path: Path) -> None:
    runs = [made(tmp_path / "controller", node_rank) for node_rank in (2, 0, 1)]
    text = order_text(runs, PodOrder("abc", {}, {}, (), "http://s", "k", "", "00", 60.0, [["/bin/x"]]))
    assert len(text) < LONG + 1000
    order = PodOrder(**json.loads(text))
    run = run_of(JobStateDir(tmp_path / "pod").find(7, 1), 2)
    write_run(order, run)
    assert run.path.name == "7-1-2"
    assert run.read_launch() == runs[0].read_launch()
    assert json.loads(run.spec.read_text())["node_rank"] == 2
    assert (tmp_path / "pod" / "id").read_text() == "abc"
    assert json.loads((tmp_path / "pod" / "allowed-commands.json").read_text()) == [["/bin/x"]]


def test_a_word_reaches_the_pod_once(tmp_path: Path) -> None:
    run, pod = made(tmp_path / "controller"), made(tmp_path / "pod")
    assert word_of(run) == ""
    go = Go(run=7, attempt=1, node="k", members=[Peer(node="k", node_rank=0, address="10.0.0.7")])
    run.write_go(go.model_dump(mode="json"))
    EventLog(run).add(["Pod p: Scheduled: n1"])
    taken: list[Go] = []

    def take(order: Go) -> None:
        taken.append(order)
        pod.write_go({})

    word = tmp_path / "word"
    listener = Listener(pod, word, take)
    for _ in range(2):
        word.write_text(word_of(run))
        listener._looked_at = float("-inf")
        listener.look()
        run.cancel("cancelled by ada")
    assert taken == [go]
    assert pod.cancel_reason() == "cancelled by ada"
    assert EventLog(pod).take() == b"kubernetes: Pod p: Scheduled: n1\n"


def test_the_word_of_many_events_fits_an_annotation(tmp_path: Path) -> None:
    run = made(tmp_path)
    EventLog(run).add(f"Pod p: Pulling: {number} {'x' * 100}" for number in range(2000))
    events = json.loads(word_of(run))["events"]
    assert len(events) < 8_001
    assert events.startswith("kubernetes: Pod p: Pulling: ")


def test_the_end_of_a_pod_has_the_report_that_the_server_did_not_take(tmp_path: Path) -> None:
    run = made(tmp_path)
    with SpoolWriter(run.spool) as writer:
        writer.append_report(Report(state="failed", at=1.0, reason=LONG * "r", traceback=LONG * "t", exit_code=3))
    path = tmp_path / "end"
    write_end(run, spool.tail(run.spool), 137, path)
    assert path.stat().st_size < 4096
    end = read_end(path.read_text())
    assert end is not None
    assert end.report is not None
    assert (end.report.state, end.report.exit_code, end.is_stored, end.exit_code) == ("failed", 3, False, 137)
    run.acknowledge(spool.tail(run.spool))
    write_end(run, 0, 0, path)
    stored = read_end(path.read_text())
    assert stored is not None
    assert (stored.is_stored, stored.report) == (True, None)
    assert read_end("out of memory") is None
    assert read_end('{"parlab_pod": 1}') is None


def heard(run: JobDir, posted: Any) -> tuple[Exchange, list[JobDir]]:
    cluster: Any = None
    answers = ServerAnswers("k", lambda: Key("", b""), posted)
    exchange = Exchange(cluster, Pool("n", Volume(), rest_s=60), answers, "abc")
    return exchange, exchange.hear([run])


def test_what_a_pod_has_told_is_written_where_a_shared_volume_would_have_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    write_note(run, 10, PodNote(started_at=5.0, was_stopped=True, has_checkpoint=True))
    assert (run.acknowledged(), run.started_at(), run.was_stopped, run.has_checkpoint) == (10, 5.0, True, True)
    write_note(run, 4, PodNote())
    assert run.acknowledged() == 10, "an older answer"


def test_a_run_is_stored_when_the_server_has_its_end(tmp_path: Path) -> None:
    run = made(tmp_path)
    answer = Acknowledge(run=7, attempt=1, node="k", position=10, note=PodNote(started_at=5.0, end=12))
    assert heard(run, lambda _: [answer])[1] == []
    assert heard(run, lambda _: [answer.model_copy(update={"position": 12})])[1] == [run]


def test_nothing_is_settled_while_the_answers_cannot_be_read(tmp_path: Path) -> None:
    def away(_: Any) -> Any:
        raise BrokerAway("away")

    exchange, stored = heard(made(tmp_path), away)
    assert (stored, exchange.is_heard) == ([], False)
