"""`parlab.init`: a run that a script reports. No method raises or waits because of the server or the network."""

from __future__ import annotations

import atexit
import json
import logging
import operator
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from parlab.client import environment, journal, launch, lines, media, mending
from parlab.client.artifacts import FileLog
from parlab.client.definitions import BEST, Definition, Definitions, Summary, flattened
from parlab.client.http import Connection
from parlab.client.recent import Recent
from parlab.client.settings import settings
from parlab.client.shipping import Shipper
from parlab.client.spools import Stream
from parlab.client.telemetry import Telemetry, is_wanted, of_rank

if TYPE_CHECKING:
    from typing import Self

FINISH_S = 60.0
"""How long `finish` waits for a server that answers."""
FINISH_AWAY_S = 3.0
"""How long it waits for one that did not answer last."""
MAX_TEMPLATES = 1_000
"""Sets of names whose lines are prepared; a script that logs other names each time gains nothing from more."""
# The timers of engines have these names, so that phases of scripts and engines share figures.
_PHASES = {"forward": "forward-compute", "backward": "backward-compute", "checkpoint": "save-checkpoint"}
_LOADING = "data-loading"
Batch = TypeVar("Batch")

log = logging.getLogger("parlab")
_inits = 0
_failure: list[str] = []
_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def init(
    experiment: str = "Default",
    config: Any = None,
    *,
    name: str = "",
    tags: Mapping[str, Any] | Iterable[str] | None = None,
    rank: int | None = None,
    run_id: str | None = None,
    url: str | None = None,
    token: str | None = None,
    telemetry: bool | None = None,
) -> Run:
    """Start to report a run of an experiment, which is created if it does not exist.

    `config` is a mapping, an `argparse.Namespace` or a dataclass. All ranks of one launch report into one run: `rank`
    and `run_id` come from the variables of the launcher (torchrun, mpirun, srun, `parlab run`) unless given.
    `telemetry=False` or PARLAB_TELEMETRY=0 switches the samples of GPU, processor, memory and network off. `tags` are
    a mapping or a list of names. Names and IDs that no server accepts are changed, with a warning.
    """
    global _inits  # noqa: PLW0603  # ranks that call `init` twice agree on both runs
    run_id = mending.run_id(run_id or os.environ.get("PARLAB_RUN_ID"))
    place = launch.launch(os.environ, rank=mending.rank(rank), run_id=run_id)
    if _inits and place.key:
        place = place._replace(key=f"{place.key}-{_inits}")
    elif _inits and place.world_size > 1 and not run_id:
        place = place._replace(run_id=f"{place.run_id}-{_inits}")
    _inits += 1
    if not place.is_shared:
        log.warning(
            "nothing identifies this launch of %d ranks, so each rank has a run of its own; set PARLAB_RUN_ID to the"
            " same value on all nodes",
            place.world_size,
        )
    login = settings(url, token)
    if "PARLAB_RUN_ID" in os.environ:
        experiment = os.environ.get("PARLAB_EXPERIMENT", experiment)
    opening = {
        "url": login.url,
        "run_id": place.run_id,
        "experiment": mending.name("experiment", experiment, "Default"),
        "name": mending.name("name", name),
        "config": environment.flat(config),
        "tags": mending.tags(tags),
        "kind": "rank",
        "rank": place.rank,
        "world_size": place.world_size,
        "started_at": time.time(),
        **launch.facts(place),
        **environment.description(),
    }
    run = Run(opening, token=login.token)
    if line := launch.ranks_line(place, os.environ):
        run.append_later(line)
    if is_wanted(os.environ, telemetry):
        run.watch(of_rank(run.append_later, place, os.environ, run.describe))
    return run


class Run(FileLog):
    """A run that is reported. `log` appends to a file and returns; a thread sends the file to the server."""

    def __init__(self, opening: dict[str, Any], *, token: str) -> None:
        self.id: str = opening["run_id"]
        self.rank: int = opening["rank"]
        self.url = ""
        """Address of the run's page, once the server has answered."""
        self.summary = Summary(self._report_summary)
        """Values of the whole run: `run.summary["best"] = 0.1`."""
        self._definitions = Definitions()
        self._files: media.Files | None = None
        self._lock = threading.Lock()
        self._recent = Recent(self._lock)
        self._templates: dict[tuple[str, ...], str] = {}
        self._names: set[str] = set()
        self._timers: dict[str, float] = {}
        self._warned: set[str] = set()
        self._step = -1
        self._shipper: Shipper | None = None
        self._writer: journal.Writer | None = None
        self._stream: Stream | None = None
        self._telemetry: Telemetry | None = None
        try:
            self._stream = Stream.create(opening)
            self._writer = journal.Writer(self._stream.records)
            self._files = media.Files(self._stream.path)
        except OSError as error:
            log.warning("this run is not recorded: %s; set PARLAB_HOME to a directory that can be written", error)
            return
        if not os.environ.get("PARLAB_OFFLINE"):
            try:
                connection = Connection(opening["url"], token)
            except ValueError as error:
                log.warning("this run stays on disk until `parlab sync`: %s", error)
            else:
                self._shipper = Shipper(self._stream, connection, announce=self._announce, recent=self._recent)
                self._shipper.start()
        atexit.register(self._at_exit)
        _runs.add(self)
        _watch_failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt):
            self.finish(state="cancelled", reason="interrupted from the keyboard")
        elif isinstance(error, SystemExit):
            self.finish(exit_code=_exit_code(error))
        else:
            self._fail("".join(traceback.format_exception(kind, error, trace)))

    # --- what a script calls ----------------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers of a step; without `step`, the step after the last one.

        When it returns, the numbers survive the end of this process. What cannot be recorded is skipped with a warning.
        """
        with self._lock:
            if self._writer is None:
                return
            if step is None:
                step = self._step + 1
            elif type(step) is not int or not -lines.MAX_STEP <= step <= lines.MAX_STEP:
                valid = self._valid_step(step)
                if valid is None:
                    return
                step = valid
            self._step = step
            try:
                data = self._fast_line(step, values) or self._slow_lines(step, values)
                if data:
                    self._write(self._writer, data)
            except OSError as error:
                self._warn("disk", f"numbers are not recorded: {error}; free space in {self._writer.directory}")
            except Exception as error:  # a value of the script may fail in any way
                self._warn("values", f"step {step} is not recorded: {error}; log a mapping of names to numbers")

    @contextmanager
    def phase(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """Measure a part of a step; the next `log` records its seconds, added up over all calls since the last.

        `synchronize` waits for the GPU before and after, without which only the time of the host is measured.
        """
        if synchronize:
            _synchronize()
        began = time.perf_counter()
        try:
            yield
        finally:
            if synchronize:
                _synchronize()
            name = _PHASES.get(name, name)
            self._timers[name] = self._timers.get(name, 0.0) + time.perf_counter() - began

    def batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches of a data loader; the time that the script waits for them is phase `data-loading`."""
        waiting = iter(batches)
        while True:
            began = time.perf_counter()
            try:
                batch = next(waiting)
            except StopIteration:
                return
            self._timers[_LOADING] = self._timers.get(_LOADING, 0.0) + time.perf_counter() - began
            yield batch

    def update_config(self, config: Any) -> None:
        """Add settings that were not known at the start; a setting that exists keeps its value."""
        self._report({"kind": "config", "config": environment.flat(config)})

    def set_tags(self, tags: Mapping[str, Any] | Iterable[str]) -> None:
        """Set tags, a mapping or a list of names; a tag that exists gets the new value."""
        self._report({"kind": "tags", "tags": mending.tags(tags)})

    def define_metric(self, name: str, step_metric: str = "", summary: str = "") -> None:
        """Give the metrics of a name, or of a pattern like `val/*`, an x axis of their own, or keep their best value.

        `step_metric` is a logged metric of whole numbers, such as an epoch: later values are recorded at its steps.
        With `summary` "min" or "max" the best value so far is logged beside each as `<name>.min` or `<name>.max`.
        """
        summary = mending.text(summary or "")
        if summary not in ("", "last", *BEST):
            self._warn(f"summary {mending.text(name)}", f"summary {mending.text(summary)} is not known; use min or max")
        with self._lock:
            self._definitions.add(
                Definition(mending.text(name), mending.text(step_metric or ""), summary if summary in BEST else "")
            )
            self._templates.clear()

    def print(self, text: str) -> None:
        """Add text to the log of the run."""
        data = (text if isinstance(text, str) else mending.text(text, 1 << 20)).encode("utf-8", "replace")
        self.append_later(data if data.endswith(b"\n") else data + b"\n")

    def finish(
        self,
        *,
        state: str = "",
        exit_code: int | None = 0,
        reason: str = "",
        trace: str = "",
        timeout_s: float | None = None,
    ) -> bool:
        """End the run and wait a while for the server; return whether it has stored everything.

        What it has not stored stays on disk: `parlab sync` sends it, and so does the next start of the same run.
        """
        if self._writer is None or self._stream is None:
            return False
        if self._telemetry is not None:
            self._telemetry.stop()
        state = state or ("failed" if exit_code else "finished")
        end = {
            "kind": "end",
            "state": state,
            "exit_code": exit_code,
            "reason": reason,
            "traceback": mending.tail(trace),
        }
        self._report({**end, "at": time.time()})
        with self._lock:
            writer, self._writer = self._writer, None
        try:
            writer.close()
        except OSError as error:
            log.warning("the end of the run may not be on disk: %s", error)
        atexit.unregister(self._at_exit)
        is_stored = False
        if self._shipper is not None:
            if timeout_s is None:
                timeout_s = FINISH_AWAY_S if self._shipper.is_failing else FINISH_S
            is_stored = self._shipper.stop(timeout_s)
        if is_stored:
            self._stream.remove()
        else:
            log.warning("not everything is on the server; `parlab sync` sends the rest from %s", self._stream.path)
        return is_stored

    # --- inside -----------------------------------------------------------------------------------------------------

    def watch(self, telemetry: Telemetry) -> None:
        """Sample until the run is finished."""
        if self._writer is not None:
            self._telemetry = telemetry
            telemetry.start()

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the environment of the run."""
        self._report({"kind": "environment", "environment": dict(facts)})

    def add_timers(self, seconds: Mapping[str, float]) -> None:
        """Add seconds to the timers that the next `log` records."""
        for name, value in seconds.items():
            self._timers[name] = self._timers.get(name, 0.0) + value

    def append(self, output: bytes) -> bool:
        """Append whole lines of output and send them without delay; return whether they are on disk."""
        is_written = self.append_later(output)
        if self._shipper is not None:
            self._shipper.wake()
        return is_written

    def append_later(self, output: bytes) -> bool:
        """Append whole lines of output; they are sent with what comes next."""
        with self._lock:
            if self._writer is None:
                return False
            try:
                for at in range(0, len(output), journal.MAX_RECORD_BYTES):
                    piece = output[at : at + journal.MAX_RECORD_BYTES]
                    self._write(self._writer, piece)
            except OSError as error:
                self._warn("disk", f"output is not recorded: {error}; free space in {self._writer.directory}")
                return False
        return True

    def _write(self, writer: journal.Writer, data: bytes) -> None:
        """Append a record of output, with the lock held."""
        position = writer.position
        writer.append(journal.encode(journal.Kind.OUTPUT, data))
        if self._shipper is not None:
            self._recent.add(position, data)

    def _report(self, report: dict[str, Any]) -> None:
        with self._lock:
            if self._writer is None:
                return
            try:
                payload = json.dumps(report, default=mending.text).encode()
                self._writer.append(journal.encode(journal.Kind.REPORT, payload))
            except OSError as error:
                self._warn("disk", f"{report['kind']} is not recorded: {error}; free space in {self._writer.directory}")
        if self._shipper is not None:
            self._shipper.wake()

    def _report_summary(self, values: Mapping[str, Any]) -> None:
        numbers = {mending.text(name): lines.number_of(value) for name, value in values.items()}
        texts = {
            name: mending.text(value, 8_000) for name, value in values.items() if numbers[mending.text(name)] is None
        }
        # JSON has no infinities: they travel as texts.
        stated = {name: str(number) for name, number in numbers.items() if number is not None}
        self._report({"kind": "summary", "numbers": stated, "texts": texts})

    def _media_step(self, step: int | None) -> int:
        if step is None:
            return max(self._step, 0)
        valid = self._valid_step(step)
        return max(self._step, 0) if valid is None else valid

    def _add_file(self, path: str, content: bytes | Path) -> None:
        with self._lock:
            clean = media.clean_path(path)
            if self._writer is None or self._files is None or not clean:
                return
            self._files.add(clean, content)
        if self._shipper is not None:
            self._shipper.wake()

    def _fast_line(self, step: int, values: Mapping[str, Any]) -> bytes | None:
        """Return the line of values under names that were logged before; None where it takes `_slow_lines`."""
        template = self._templates.get(tuple(values))
        if template is None or self._timers:
            return None
        numbers = values.values()
        try:
            # A sum is finite only if all its parts are.
            if not lines.PLAIN.issuperset(map(type, numbers)) or not -lines.LARGEST < sum(numbers) < lines.LARGEST:
                return None
        except OverflowError:  # an integer beyond all floats
            return None
        line = template % (time.time(), step, *numbers)
        return line.encode("ascii") if len(line) < lines.LINE_LIMIT else None

    def _slow_lines(self, step: int, values: Any) -> bytes:
        """Write values of any kind, without those that cannot be recorded; remember names that can."""
        if not isinstance(values, Mapping):
            self._warn("values", f"{_shown(values)} is not recorded; log a mapping of names to numbers")
            return b""
        flat = dict(flattened(values))
        if self._definitions:
            for name in self._definitions.broken_axes(flat):
                self._warn(
                    f"axis {name}",
                    f"step metric {name!r} is {_shown(flat[name])}, no whole number; its metrics are recorded at the"
                    " step of `log`. Log it as a whole number, such as 1000 times the epoch",
                )
            parts = [(at, self._numbers(part)) for at, part in self._definitions.parts(step, flat)]
        else:
            parts = [(step, self._numbers(flat))]
            if (
                len(parts[0][1]) == len(values)
                and flat.keys() == values.keys()
                and len(self._templates) < MAX_TEMPLATES
            ):
                self._templates[tuple(values)] = lines.template(self.rank, values)
        timers, self._timers = self._timers, {}
        data = b"".join(lines.event_lines(self.rank, step, {}, timers)) if timers else b""
        return data + b"".join(line for at, part in parts for line in lines.event_lines(self.rank, at, part))

    def _numbers(self, values: Mapping[Any, Any]) -> dict[str, float]:
        """Return the values that can be recorded, and warn of the others."""
        numbers: dict[str, float] = {}
        for name, value in values.items():
            if not self._is_valid_name(name):
                continue
            number = lines.number_of(value)
            if number is None:
                self._warn(
                    f"value {name}", f"metric {name!r}: {_shown(value)} is not a number; log a number, or use print"
                )
                continue
            numbers[name] = number
        return numbers

    def _is_valid_name(self, name: Any) -> bool:
        if name in self._names:
            return True
        if not isinstance(name, str) or not 0 < len(name) <= lines.NAME_LENGTH or not name.isprintable():
            length = f" of {len(name)} characters" if isinstance(name, str) else ""
            self._warn(
                f"name {str(name)[:80]}",
                f"metric name {name!r:.80}{length} is not recorded; use 1 to {lines.NAME_LENGTH} printable characters",
            )
            return False
        if len(self._names) >= lines.MAX_NAMES:
            self._warn("names", f"metric {name!r:.80} is not recorded: a run has at most {lines.MAX_NAMES} metrics")
            return False
        self._names.add(name)
        return True

    def _valid_step(self, step: Any) -> int | None:
        try:
            number = operator.index(step.item() if hasattr(step, "item") else step)
        except Exception:  # a class of the script may fail in any way
            number = int(step) if isinstance(step, float) and step.is_integer() else lines.MAX_STEP + 1
        if abs(number) <= lines.MAX_STEP:
            return number
        self._warn("step", f"step {_shown(step)} is not recorded; use a whole number between ±{lines.MAX_STEP}")
        return None

    def _warn(self, subject: str, message: str) -> None:
        """Warn once about each subject."""
        if subject not in self._warned and len(self._warned) < 100:
            self._warned.add(subject)
            log.warning("%s", message)

    def _announce(self, run: dict[str, Any]) -> None:
        self.id, self.url = str(run.get("id", self.id)), str(run.get("url", ""))
        if self.rank <= 0:
            sys.stderr.write(f"parlab: run {run.get('number')} of {run.get('experiment')}: {self.url}\n")

    def _fail(self, trace: str) -> None:
        reason = trace.strip().splitlines()[-1] if trace.strip() else "failed"
        self.finish(exit_code=1, reason=reason[:1000], trace=trace)

    def _after_fork(self) -> None:
        """Leave the run to the parent: a forked worker of a script records nothing."""
        self._lock = threading.Lock()  # the parent may have held it
        self._writer = self._shipper = None

    def _at_exit(self) -> None:
        if self._writer is None:
            return
        if _failure:
            self._fail(_failure[-1])
        else:
            self.finish()


def _after_fork() -> None:
    for run in list(_runs):
        run._after_fork()


# Asking for the process ID at each `log` would cost as much as a tenth of it.
os.register_at_fork(after_in_child=_after_fork)


def _watch_failures() -> None:
    """Remember the traceback that ends the script: at exit it is not available otherwise."""
    if getattr(sys.excepthook, "is_parlab", False):
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _failure.append("".join(traceback.format_exception(kind, error, trace)))
        previous(kind, error, trace)

    hook.is_parlab = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _shown(value: Any) -> str:
    try:
        written = repr(value)
    except Exception:  # a class of the script, or an integer of more digits than Python writes
        written = type(value).__name__
    return mending.text(written, 80)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
