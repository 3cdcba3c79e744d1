"""One series of any length: bytes, reading, zoom, archive, deletion.

`python -m tests.bench.campaigns.scale 1000000 100000000` measures two of them.

The chunks of a series repeat the same values at other steps and positions, so that a billion points are written in
minutes; the pyramid is made by the code that makes it in production. All series are in one database, each in an
experiment and, on PostgreSQL (PARLAB_BENCH_DATABASE=postgres), in a partition of its own; in the end they are deleted,
the last one first, while the others are still there.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench.data_directory import data_directory

if TYPE_CHECKING:
    from parlab.lab.models import Experiment

BUILT_AT_ONCE = 1 << 20
MAX_POINTS = 1_000
WINDOWS = 60
ARCHIVED_UP_TO = 10_000_000


def main() -> int:
    """Measure series of the given numbers of points."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [1_000_000]
    with data_directory() as directory:
        experiments = [(size, measure(size, directory)) for size in sizes]
        for size, experiment in reversed(experiments):
            delete(size, experiment)
    return 0


def measure(size: int, directory: Path) -> Experiment:
    """Print one line per figure of a series of `size` points; return its experiment."""
    from parlab.lab.models import Experiment, Run
    from parlab.series import archive, store
    from tests.bench.database import new_attempt, used_bytes

    next_partition()
    attempt = new_attempt()
    Run.objects.filter(pk=attempt.run_id).update(state="finished")
    # The next series gets an experiment of its own.
    name = f"bench-{attempt.pk}"
    Experiment.objects.filter(pk=attempt.run.experiment_id).update(name=name, slug=name)
    before = used_bytes()
    took_s = timed(lambda: build(attempt.pk, size))
    say(size, "written", f"{took_s:.1f} s")
    say(size, "bytes per point", f"{(used_bytes() - before) / size:.2f}")
    whole = [1e3 * timed(lambda: store.read(attempt.pk, "loss", rank=0, max_points=MAX_POINTS)) for _ in range(15)]
    say(size, "read, reduced to 1,000 points", f"{np.median(whole):.1f} ms median, {max(whole):.1f} ms worst of 15")
    random, windows = np.random.default_rng(1), []
    for _ in range(WINDOWS):
        width = int(np.exp(random.uniform(np.log(1_000), np.log(size))))
        first = int(random.integers(0, size - width + 1))
        windows.append(
            1e3
            * timed(
                lambda first=first, width=width: store.read(  # type: ignore[misc]  # defaults of a lambda
                    attempt.pk, "loss", rank=0, max_points=MAX_POINTS, first_step=first, last_step=first + width
                )
            )
        )
    spread = f"{np.median(windows):.1f} ms median, {np.percentile(windows, 95):.1f} ms p95, {max(windows):.1f} ms worst"
    say(size, f"zoom, {WINDOWS} windows", spread)
    if size <= ARCHIVED_UP_TO:
        url = f"file://{directory}/archive"
        say(size, "archived", f"{timed(lambda: archive.archive(attempt.pk, url)):.1f} s")
        files = sum(
            path.stat().st_size for path in (directory / "archive" / f"attempt-{attempt.pk}").rglob("*.parquet")
        )
        say(size, "bytes per archived point", f"{files / size:.2f}")
        say(size, "restored", f"{timed(lambda: archive.restore(attempt.pk)):.1f} s")
    return attempt.run.experiment


def next_partition() -> None:
    """Let the next attempt be the first of a partition."""
    from django.db import connection

    from parlab.series import partitions

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT setval('lab_attempt_id_seq', %s + (SELECT coalesce(max(id), 0) FROM lab_attempt))",
                [partitions.WIDTH],
            )
        partitions.extend()


def delete(size: int, experiment: Experiment) -> None:
    """Print how long the deletion of an experiment takes, and how long others wait."""
    from parlab.ingest.batches.deletion import experiment_delete

    waits = Writer()
    took_s = timed(lambda: experiment_delete(experiment=experiment))
    say(size, "experiment deleted", f"{took_s:.2f} s; another writer waited {waits.stop():.2f} s at most")


def build(attempt_id: int, size: int) -> None:
    """Write a series of so many points."""
    from django.db import transaction

    from parlab.series import levels
    from parlab.series.chunks import CHUNK_POINTS, append, full_chunks
    from parlab.series.columns import Columns, pack
    from parlab.series.models import SeriesChunk

    random = np.random.default_rng(0)
    values = np.round(5 + random.normal(0, 0.1, BUILT_AT_ONCE), 6)
    times = np.round(1.76e9 + np.cumsum(random.normal(0.3, 0.01, BUILT_AT_ONCE)), 3)
    pattern = full_chunks(attempt_id, ("loss", 0), 0, Columns(np.arange(BUILT_AT_ONCE), times, values))
    whole = size // BUILT_AT_ONCE * BUILT_AT_ONCE
    for first in range(0, whole, BUILT_AT_ONCE):
        steps = np.arange(first, first + BUILT_AT_ONCE)
        rows = [
            SeriesChunk(
                attempt_id=attempt_id,
                metric="loss",
                rank=0,
                position=first + row.position,
                count=row.count,
                first_step=first + row.position,
                last_step=first + row.position + row.count - 1,
                steps=pack(steps[row.position : row.position + row.count]),
                times=row.times,
                values=row.values,
            )
            for row in pattern
        ]
        with transaction.atomic():
            SeriesChunk.objects.bulk_create(rows, batch_size=50)
            held = levels.last_rows(attempt_id, {"loss"})
            levels.extend(attempt_id, {("loss", 0): Columns(steps, times, values)}, held)
    last = SeriesChunk.objects.filter(attempt_id=attempt_id, position=whole - CHUNK_POINTS)
    last.update(is_last=True)
    rest = size - whole
    if rest:
        part = slice(0, rest)
        append(attempt_id, {("loss", 0): Columns(np.arange(whole, size), times[part], values[part])})


class Writer:
    """Another connection that writes a row all the time, and how long it has waited at most."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._worst_s = 0.0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        from django.contrib.auth import get_user_model
        from django.db import connection
        from django.utils import timezone

        while not self._is_over.wait(0.005):
            users: Any = get_user_model().objects.filter(username="bench")
            self._worst_s = max(self._worst_s, timed(lambda users=users: users.update(last_login=timezone.now())))  # type: ignore[misc]
        connection.close()

    def stop(self) -> float:
        """End it; return the longest wait in seconds."""
        self._is_over.set()
        self._thread.join()
        return self._worst_s


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def say(size: int, name: str, value: str) -> None:
    """Print a figure."""
    sys.stdout.write(f"{size:>13,}  {name:<32} {value}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
