"""A chain through the whole server: workers and beat in this process, and what has to hold at every moment."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings

from parlab.fleet import services
from parlab.lab.models import Attempt, Node, Run
from parlab.publishing.figures.chains import Chain, Joined, chain_of
from parlab.series import log
from runners.wire.protocol import RunState
from tests.chains import script
from tests.fleet.workers import Workers
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine

BEAT_S = 0.5


def command() -> list[str]:
    """Return the beginning of the command of a chain, for the list of allowed commands."""
    return [sys.executable, str(Path(script.__file__))]


def chain_data(steps: int | str, step_s: float, every: int = 0, **sections: Any) -> dict[str, Any]:
    """Return the configuration of a chain whose script makes so many steps; all nodes see `directory`."""
    launcher = {"kind": "plain", "chain": True, "grace_s": 10, **sections.pop("launcher", {})}
    if (directory := sections.pop("directory", None)) is not None:
        sections["checkpoint"] = {"directory": str(directory)}
    return {
        "parallel": {"engine": "command"},
        "command": {"argv": [*command(), str(steps), str(step_s), str(every)]},
        "launcher": launcher,
        "cluster": {"device": "cpu", **sections.pop("cluster", {})},
        **sections,
    }


class World:
    """The server around one chain."""

    def __init__(self, workers: Workers, machines: Sequence[NodeMachine]) -> None:
        self.workers, self.machines = workers, machines
        self.at_once = 0
        """Most attempts of a run with a living process at one moment."""
        self._beat_at = 0.0

    @property
    def checkpoints(self) -> str:
        """The directory for checkpoints, which all nodes see."""
        return self.machines[0].environment["PARLAB_CHECKPOINT_DIR"]

    def until(self, condition: Callable[[], Any], what: str, within_s: float = 120.0) -> Any:
        """Serve until a condition holds; dispatch and look twice a second."""

        def beaten() -> Any:
            if time.monotonic() - self._beat_at < BEAT_S:
                return None
            services.dispatch()
            self._beat_at = time.monotonic()
            self.look()
            return condition()

        return self.workers.until(beaten, what, within_s)

    def _until_of(self, run: Run, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait for a run; a wait in vain says what its attempts and the nodes are then."""
        try:
            self.until(condition, what, within_s)
        except AssertionError as late:
            nodes = list(Node.objects.values_list("name", "left_out", "is_draining", "abilities"))
            raise AssertionError(f"{late}; {describe(run)}; {nodes}") from None

    def look(self) -> None:
        """Note how many attempts are alive."""
        alive = set[str]()
        for machine in self.machines:
            for process in machine.processes():
                try:
                    marker = process.environ().get("PARLAB_RUN", "")
                except psutil.Error:
                    continue
                alive.add(marker)
        self.at_once = max(self.at_once, len(alive))

    def steps(self, run: Run) -> int:
        """Return the last step of the current attempt; 0 before the first."""
        run.refresh_from_db()
        return run.current_attempt().last_step or 0

    def until_attempt(self, run: Run, number: int, within_s: float = 120.0, *, steps: int = 5) -> Attempt:
        """Serve until an attempt has made more steps than so many that none before it had made."""

        def has_steps() -> bool:
            run.refresh_from_db()
            made = dict(run.attempts.values_list("number", "last_step"))
            own = made.pop(run.attempt_number) or 0
            return run.attempt_number >= number and own > steps + max([last or 0 for last in made.values()], default=0)

        self._until_of(run, has_steps, f"attempt {number} makes steps", within_s)
        return run.attempts.get(number=number)

    def until_ended(self, run: Run, within_s: float = 120.0) -> Chain:
        """Serve until the run has ended; return its attempts."""

        def has_ended() -> bool:
            run.refresh_from_db()
            return run.is_final

        self._until_of(run, has_ended, "the chain has ended", within_s)
        chain = chain_of(run)
        assert chain is not None
        return chain


def describe(run: Run) -> str:
    """Return the attempts of a run, for a test that waits in vain."""
    return ", ".join(f"{each.number} {each.state} {each.last_step} {each.reason}" for each in run.attempts.all())


def check_one_curve(run: Run, steps: int) -> None:
    """Check that the curve of a run has each step once, with the value that belongs to it, and the log all lines."""
    attempt = Attempt.objects.select_related("run").get(run=run, number=run.attempt_number)
    loss = Joined(attempt).read_ranks("loss")[0]
    assert loss.steps.tolist() == list(range(1, steps + 1))
    assert loss.values.tolist() == [1.0 + 1.0 / step for step in range(1, steps + 1)]
    for each in run.attempts.exclude(started_at=None):
        text = b"".join(log.read_log(each.pk))
        assert text.count(b"goes on from step") == 1
        assert text.count(b'"event":"step"') == len(set(text_steps(text))), "every line once"


def text_steps(text: bytes) -> list[bytes]:
    """Return the lines of steps in a log."""
    return [line for line in text.splitlines() if b'"event":"step"' in line]


def states(run: Run) -> list[RunState]:
    """Return how the attempts of a run have ended, in their order."""
    return [RunState(state) for state in run.attempts.order_by("number").values_list("state", flat=True)]


def two_nodes(root: Path, url: str) -> list[NodeMachine]:
    """Start two daemons that allow the script; both see the directory of its checkpoints."""
    (root / "allowed.json").write_text(json.dumps([command()]))
    machines = []
    for number in range(2):
        directory = root / f"n{number}"
        directory.mkdir()
        machine = NodeMachine(directory, url, name=f"n{number}", address=f"127.0.0.{number + 2}")
        machine.environment |= {
            "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
            "TEST_SCRIPTS": "",
            "PARLAB_ALLOWED_COMMANDS": str(root / "allowed.json"),
            "PARLAB_CHECKPOINT_DIR": str(root / "checkpoint"),
        }
        machine.options = ("--spot-notice", str(directory / "notice"))
        machine.start_daemon()
        machines.append(machine)
    return machines


def machine_of(run: Run, machines: Sequence[NodeMachine]) -> NodeMachine:
    """Return the node of the current attempt."""
    node = run.current_attempt().node
    assert node is not None
    return machines[int(node.name[1:])]


def kill_all_of(machine: NodeMachine) -> None:
    """Kill the daemon of a node, its supervisors and their ranks, all at once."""
    machine.daemons[-1].send_signal(signal.SIGKILL)
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    wait_for(lambda: not machine.processes(), "nothing of the node is left")
