"""Overhead of telemetry sampling: training steps with and without it, alternating in the same processes.

At one sample per second the cost would be below the scatter of a step. The benchmark therefore samples TIMES as often
as a supervisor and divides the cost by TIMES.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from runners.supervisor.supervise import SAMPLE_S
from runners.telemetry import gpus
from runners.telemetry.telemetry import Samples
from tests.bench import megatrons
from tests.bench.ranks import Step, side_by_side
from tests.bench.result import Result, Scale

TIMES = 20
FLAG = "PARLAB_BENCH_SAMPLING"
"""Environment variable with the path of a file that exists while sampling is on; ranks are other processes."""


def prepare(rank: int, world_size: int, *, is_quick: bool = False) -> Sequence[tuple[Step, Step]]:
    """Return a step of engine megatron with sampling on, and one with sampling off."""
    ((ours, _),) = megatrons.prepare(rank, world_size, is_quick=is_quick)
    flag = Path(os.environ[FLAG])

    def sampled(step: Callable[[], object], *, is_on: bool) -> Step:
        def work() -> object:
            if rank == 0:
                flag.touch() if is_on else flag.unlink(missing_ok=True)
            return step()

        return work

    return [(sampled(ours, is_on=True), sampled(ours, is_on=False))]


@contextmanager
def _sampling(flag: Path) -> Iterator[list[int]]:
    """Sample TIMES as often as a supervisor while the flag exists; yield the list of lines per sample."""
    description = gpus.described()
    samples = Samples([gpu["uuid"] for gpu in description[0]] if description else [])
    printed: list[int] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(SAMPLE_S / TIMES):
            if flag.exists():
                printed.append(len(samples.lines()))

    thread = threading.Thread(target=work)
    before, gpus.EVERY_S = gpus.EVERY_S, SAMPLE_S / TIMES
    samples.start()
    thread.start()
    try:
        yield printed
    finally:
        ended.set()
        samples.stop()
        thread.join()
        gpus.EVERY_S = before


def overhead_pct(scale: Scale) -> Result:
    """Measure steps of two replicas with and without the supervisor's sampler."""
    rounds = scale.repeats(16)
    with tempfile.TemporaryDirectory(prefix="parlab-sampling-") as directory:
        flag = Path(directory) / "on"
        os.environ[FLAG] = str(flag)
        try:
            with _sampling(flag) as printed:
                (times,) = side_by_side(partial(prepare, is_quick=scale.is_quick), megatrons.RANKS, rounds)
        finally:
            del os.environ[FLAG]
    if not printed and not scale.is_quick:  # in quick mode all steps may end before the first sample
        raise RuntimeError("nothing was sampled while the steps were timed")
    overhead = (1 / times.ratio - 1) / TIMES
    against = f"none: {1000 * times.theirs:.0f} ms/step, {1000 * times.ours:.0f} at {TIMES} times the rate"
    return Result(100 * overhead, against, rounds, 1 / (1 + overhead))
