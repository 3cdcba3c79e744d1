"""A real daemon, real Redis, real processes: orders in, batches out, whoever is killed."""

from __future__ import annotations

from tests.runners.conftest import NodeMachine, Server


def test_a_run_is_started_and_everything_it_printed_arrives(machine: NodeMachine, server: Server) -> None:
    machine.script(1, "print('hello'); print('world')")
    machine.start_daemon()
    server.start(1)
    report = server.end_of(1)
    assert (report.state, report.exit_code) == ("finished", 0)
    assert server.lines(1) == [b"hello", b"world"]
