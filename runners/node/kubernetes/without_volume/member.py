"""In a pod without a volume: `python -m runners.node.kubernetes.without_volume.member RUN_DIR` supervises its part.

It takes the order from a Secret and the word of the controller from a file, posts the spool over HTTP, and holds the
pod until the server has stored everything, for a limited time.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from runners.node.jobs import member
from runners.node.jobs.member import Here
from runners.node.jobs.state import JobDir, JobStateDir
from runners.node.keeper import Keeper, Limits
from runners.node.kubernetes.member import KILLED, FirstProcess, PodSupervisor, described, node_rank, parse
from runners.node.kubernetes.without_volume import posting
from runners.node.kubernetes.without_volume.end import write_end
from runners.node.kubernetes.without_volume.order import WORD_FILE, WORD_PLACE, PodOrder, read_order, run_of, write_run
from runners.node.kubernetes.without_volume.word import Listener
from runners.node.launch import launch
from runners.node.rundir import RunDir
from runners.supervisor.spool import SpoolWriter

log = logging.getLogger(__name__)


class PostingSupervisor(PodSupervisor):
    """A supervisor that is told by its controller what a daemon would do in the directory of the run."""

    def __init__(self, run: RunDir, shipping: socket.socket | None = None) -> None:
        super().__init__(run, shipping)
        state = JobStateDir(run.path.parent.parent)
        keeper = Keeper(state, hardware={}, limits=Limits(), command=launch.command)
        self._listener = Listener(JobDir(run.path), WORD_PLACE / WORD_FILE, keeper.go)

    def _look_for_orders(self) -> None:
        self._listener.look()
        super()._look_for_orders()


def here(environment: Mapping[str, str], _: JobStateDir) -> Here:
    """Describe this pod from its environment."""
    return described(environment, "", "pod, over HTTP")


class PostingFirstProcess(FirstProcess):
    """The first process, which posts what the server has not stored when the supervisor has ended.

    If it is killed, the container starts again, and it posts what the first one has left.
    """

    def __init__(self, path: Path, order: PodOrder) -> None:
        super().__init__(path)
        self._order = order

    def _supervise(self) -> int | None:
        return member.supervise_part(self._path, here, PostingSupervisor, posting.HTTP)

    def _leave(self, status: int) -> int:
        run = JobDir(self._path)
        with SpoolWriter(run.spool, at_least=run.acknowledged()):
            pass  # cuts off what a supervisor was writing when it was killed
        write_end(run, posting.post_rest(run, self._order.server_of(run), self._order.rest_s), status)
        return 0

    def leave_again(self) -> int:
        """Post what the first process had not posted when it was killed; return the exit code."""
        log.error("%s was started before: posting what is left", self._path)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the grace of the pod is for this
        return self._leave(KILLED)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    first = parse(arguments, __doc__ or "")
    order = read_order()
    run = run_of(first, node_rank())
    process = PostingFirstProcess(run.path, order)
    if run.started_at():
        return process.leave_again()
    write_run(order, run)
    return process.run()


if __name__ == "__main__":
    sys.exit(main())
