"""The checkpoints of one attempt: what it continues from, when it saves, and how it ends when it is warned."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch.distributed as dist

from parlab.client.stopping import CHECKPOINT_DIRECTORY, SAVED_STEP, reason, should_stop
from runners.config import ConfigError, Problem, RunConfig
from runners.engines.checkpoints import folder
from runners.engines.checkpoints.folder import Checkpoint, File, Folder
from runners.engines.checkpoints.together import Together
from runners.engines.process.events import Printer
from runners.engines.process.rank import Checkpointed, Rank
from runners.engines.process.timers import StepTimes

ATTEMPT = "PARLAB_ATTEMPT"
VISIBLE_WITHIN_S = 10.0
"""Time after which a new file must be visible on all nodes; network file systems cache for a while."""
TIMER = "save-checkpoint"
_SHAPE = (
    "kind", "implementation", "num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size",
)  # fmt: skip


class Format(Protocol):
    """How an engine writes its state to a directory and reads it again; both are collective over all ranks.

    `group` connects them on the CPU, for the thread that writes; None for a single rank.
    """

    def write(self, directory: Path, group: dist.ProcessGroup | None) -> Callable[[], None]:
        """Begin to write; return the function that waits for the end, which another thread may call."""

    def facts(self) -> dict[str, Any]:
        """Return the numbers that are stored in the manifest, the same on every rank."""

    def read(self, checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> None:
        """Replace the state by that of a checkpoint."""


class CheckpointError(OSError):
    """The checkpoint that a warned run needs could not be written."""


class _Save(NamedTuple):
    """A checkpoint that is being written."""

    step: int
    began: float
    draft: Path
    facts: dict[str, Any]
    wait: Callable[[], None]
    error: str


class Outcome(NamedTuple):
    """What became of a save."""

    step: int
    seconds: float
    checkpoint: Checkpoint | None
    error: str = ""


class Checkpoints:
    """Iterate over `steps()`, and call `after(step)` for each; the ranks of a run do both together."""

    def __init__(self, config: RunConfig, printer: Printer, together: Together, format: Format, path: Path) -> None:
        """Take the folder and load its newest valid checkpoint. Raises ConfigError if the ranks cannot use it."""
        should_stop()  # from here on a warning ends the run after a step
        self._config, self._wanted = config, config.checkpoint
        self.last = config.train.iterations
        self._printer, self._together, self._format = printer, together, format
        self._folder = Folder(path, int(os.environ.get(ATTEMPT) or 1))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: tuple[_Save, Future[Outcome]] | None = None
        self._blocked_s = 0.0
        self._saved_step = 0
        self._stops = False
        self._take()
        self.done = self._load()
        """The last step that need not be made again."""
        self._saved_at = time.monotonic()

    # --- what an engine calls ----------------------------------------------------------------------------------------

    def steps(self) -> Iterator[int]:
        """Yield the steps that are left; a warned run ends after one of them, once its checkpoint is written.

        Raises CheckpointError if that is not possible, and Checkpointed if it was.
        """
        for step in range(self.done + 1, self.last + 1):
            yield step
            self.end_if_warned(step)

    def end_if_warned(self, step: int) -> None:
        """Save and end if a rank was warned; a loop that is not over `steps()` calls it after each step."""
        if self._stops:
            self._stop(step)

    def after(self, step: int) -> float:
        """Agree on what comes after a step, and begin to save if it is time; return the seconds that this took away."""
        decision = self._together.decide(stops=should_stop(), saves=self._is_time())
        every, is_last = self._wanted.every_steps, step == self.last
        self._stops = decision.stops and not is_last  # after the last step the run ends by itself
        self._collect()
        if self._stops or not (decision.saves or is_last or (every and step % every == 0)):
            return 0.0
        began = time.perf_counter()
        self._begin(step, began)
        self._blocked_s = time.perf_counter() - began
        return self._blocked_s

    def finish(self, *, is_over: bool = True) -> None:
        """Wait until everything is written, and let another attempt use the folder."""
        began = time.perf_counter()
        if self._saving is not None:
            wait([self._saving[1]])
            self._blocked_s += time.perf_counter() - began
        self._collect(wait=True)
        self._thread.shutdown()
        if is_over and self._together.is_first:
            self._folder.mark_finished()
        self._folder.leave()

    # --- start -------------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        problem = ""
        if self._together.is_first:
            try:
                self._check_is_shared()
                self._folder.take()
                if self._folder.start_anew():
                    self._printer.log("parlab: the training was finished: it starts once more")
            except OSError as error:
                problem = str(error)
        if problem := self._together.from_first(problem):
            raise self._refused(f"{self._folder.path} cannot be used for checkpoints: {problem}")
        # Written by rank 0: a rank that does not see it is on a node with a folder of its own.
        blind = [number for number, sees in enumerate(self._together.gather(self._sees_lock())) if not sees]
        if blind:
            self._folder.leave()
            ranks = ", ".join(map(str, blind[:5]))
            message = f"{self._folder.path} is not shared: rank {ranks} does not see what rank 0 writes there"
            raise self._refused(f"{message}; set checkpoint.directory to a directory that all nodes see")

    def _check_is_shared(self) -> None:
        """Raise OSError if earlier attempts have saved elsewhere: a folder that was ever used has a lock."""
        saved_step = os.environ.get(SAVED_STEP)
        if saved_step and not self._folder.was_used:
            raise OSError(
                f"{socket.gethostname()} sees nothing of the attempt that saved step {saved_step}, on another node or"
                " before the directory was deleted; set checkpoint.directory to a directory that all nodes see, or"
                " relaunch the run to begin with step 1"
            )

    def _sees_lock(self) -> bool:
        until = time.monotonic() + VISIBLE_WITHIN_S
        while not (self._folder.path / "lock").exists():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _refused(self, message: str) -> ConfigError:
        return ConfigError([Problem("checkpoint.directory", str(self._folder.path), message)])

    def _load(self) -> int:
        """Load the newest checkpoint that is as it was written; return its step, 0 if there is none."""
        began = time.perf_counter()
        for chosen, problem in self._together.from_first(self._folder.checkpoints()):
            if problem := problem or self._damage(chosen):
                self._skip(chosen, problem)
                continue
            self._check_model(chosen)
            self._format.read(chosen, self._together.saving)
            if self._together.is_first:
                seconds = time.perf_counter() - began
                self._emit("load", chosen.step, seconds, seconds, chosen)
                self._printer.log(
                    f"parlab: continues after step {chosen.step} from {chosen.path}, written by attempt"
                    f" {chosen.attempt}; loaded in {seconds:.3g} s"
                )
            self._saved_step = chosen.step
            return chosen.step
        if self._together.is_first:
            self._printer.log(f"parlab: no checkpoint in {self._folder.path}: starts with step 1")
        return 0

    def _damage(self, chosen: Checkpoint) -> str:
        """Read all files, each on one rank; return what is wrong with one of them."""
        together = self._together
        mine = folder.share_of(sorted(chosen.files), together.rank, together.world_size)
        return next(filter(None, together.gather(folder.damage(chosen, mine))), "")

    def _skip(self, damaged: Checkpoint, problem: str) -> None:
        if self._together.is_first:
            self._printer.log(f"parlab: checkpoint {damaged.path} is damaged and skipped: {problem}")
            self._emit("load", damaged.step, 0.0, 0.0, damaged, error=problem)
            self._folder.set_aside(damaged)

    def _check_model(self, chosen: Checkpoint) -> None:
        for name, value in _shape(self._config).items():
            saved = chosen.facts.get("model", {}).get(name, value)
            if saved != value:
                raise self._refused(
                    f"{chosen.path} is of another model: {name} {saved}, here {value}; use another checkpoint.directory"
                )

    # --- saving ------------------------------------------------------------------------------------------------------

    def _is_time(self) -> bool:
        every_s = self._wanted.every_s
        return every_s is not None and self._together.is_first and time.monotonic() - self._saved_at >= every_s

    def _begin(self, step: int, began: float) -> None:
        """Copy the state and let a thread write it; waits for the save before, if that is not done."""
        self._collect(wait=True)
        self._saved_at = time.monotonic()
        draft = self._folder.path / self._together.from_first(self._folder.draft_name(step))
        facts = {"model": _shape(self._config), "layout": layout_of(self._config), **self._format.facts()}
        error, written = "", _nothing
        try:
            draft.mkdir(parents=True, exist_ok=True)
            written = self._format.write(draft, self._together.saving)
        except Exception as failure:  # all ranks must meet again, whatever happened on one of them
            error = first_line(failure)
        save = _Save(step, began, draft, facts, written, error)
        self._saving = save, self._thread.submit(self._complete, save)

    def _complete(self, save: _Save) -> Outcome:
        """Write the files, check and seal them; the training goes on meanwhile."""
        error = save.error
        try:
            save.wait()
        except Exception as failure:
            error = error or first_line(failure)
        together, digests = self._together, dict[str, File]()
        error = next(filter(None, together.gather(error)), "")
        if not error:
            names = together.from_first(folder.listed(save.draft) if together.is_first else [])
            try:
                for name in folder.share_of(names, together.rank, together.world_size):
                    digests[name] = folder.digest(save.draft / name, sync=True)
            except OSError as failure:
                error = first_line(failure)
            answers = together.gather((error, digests))
            error = next(filter(None, (answer[0] for answer in answers)), "")
            digests = {name: file for answer in answers for name, file in answer[1].items()}
        sealed = self._seal(save, digests, error) if together.is_first else None
        return cast(Outcome, together.from_first(sealed))

    def _seal(self, save: _Save, files: Mapping[str, File], error: str) -> Outcome:
        checkpoint = None
        if not error:
            try:
                checkpoint = self._folder.seal(save.draft, save.step, save.facts, files)
                self._folder.prune(self._wanted.keep)
            except OSError as failure:
                error = "" if checkpoint else first_line(failure)
        if error:
            shutil.rmtree(save.draft, ignore_errors=True)
        return Outcome(save.step, time.perf_counter() - save.began, checkpoint, error)

    def _collect(self, *, wait: bool = False) -> Outcome | None:
        """Report the save that has ended, if one has."""
        if self._saving is None or not (wait or self._saving[1].done()):
            return None
        outcome = self._saving[1].result()
        self._saving = None
        if outcome.checkpoint is not None:
            self._saved_step = outcome.step
        if self._together.is_first:
            self._report(outcome)
        return outcome

    def _report(self, outcome: Outcome) -> None:
        if outcome.checkpoint is not None:
            self._emit("save", outcome.step, outcome.seconds, self._blocked_s, outcome.checkpoint)
            return
        self._emit("save", outcome.step, outcome.seconds, self._blocked_s, None, error=outcome.error)
        self._printer.log(
            f"parlab: the checkpoint of step {outcome.step} was not written: {outcome.error}; the last valid one is"
            f" {f'of step {self._saved_step}' if self._saved_step else 'none'}"
        )

    def _stop(self, step: int) -> None:
        """Save the state after a step, and end."""
        self._collect(wait=True)
        if self._saved_step != step:
            began = time.perf_counter()
            self._begin(step, began)
            assert self._saving is not None
            wait([self._saving[1]])
            self._blocked_s = time.perf_counter() - began
            outcome = self._collect(wait=True)
            assert outcome is not None
            if outcome.checkpoint is None:
                self.finish(is_over=False)
                raise CheckpointError(
                    f"the checkpoint of step {step} could not be written before the end: {outcome.error}"
                )
        if self._together.is_first:
            self._printer.log(f"parlab: {reason() or 'another rank'} was received: ends after step {step}, saved")
        self.finish(is_over=False)
        raise Checkpointed

    def _emit(
        self, kind: str, step: int, seconds: float, blocked_s: float, saved: Checkpoint | None, *, error: str = ""
    ) -> None:
        self._printer.emit(
            "checkpoint",
            kind=kind,
            step=step,
            seconds=round(seconds, 6),
            blocked_s=round(min(blocked_s, seconds), 6),
            bytes=saved.bytes if saved else 0,
            path=str(saved.path if saved else self._folder.path),
            valid=saved is not None and not error,
            **({"error": error} if error else {}),
        )


class NoCheckpoints:
    """For a run that writes none."""

    def __init__(self, iterations: int) -> None:
        self.done, self.last = 0, iterations

    def steps(self) -> Iterator[int]:
        yield from range(1, self.last + 1)

    def after(self, _step: int) -> float:
        """Do nothing."""
        return 0.0

    def end_if_warned(self, _step: int) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


def open_checkpoints(rank: Rank, make_format: Callable[[], Format]) -> Checkpoints | NoCheckpoints:
    """Return the checkpoints of a rank that has joined the others; the newest one is loaded.

    Raises ConfigError if the run has no folder for them, or if the ranks cannot use it.
    """
    config, place = rank.config, rank.place
    if not config.checkpoint.is_on:
        return NoCheckpoints(config.train.iterations)
    directory = os.environ.get(CHECKPOINT_DIRECTORY) or config.checkpoint.directory
    if not directory:
        message = f"an engine that is started by hand needs a directory; set it, or {CHECKPOINT_DIRECTORY}"
        raise ConfigError([Problem("checkpoint.directory", None, message)])
    rank.phase = "checkpoint"
    together = Together(place.rank, place.world_size, rank.timeout)
    checkpoints = Checkpoints(config, rank.printer, together, make_format(), Path(directory))
    rank.done = checkpoints.done
    return checkpoints


def charged(times: StepTimes, blocked_s: float) -> StepTimes:
    """Add the time that a checkpoint took away from the training to the step after which it began."""
    if not blocked_s:
        return times
    return times._replace(step_time_s=times.step_time_s + blocked_s, timers_s={**times.timers_s, TIMER: blocked_s})


def layout_of(config: RunConfig) -> dict[str, int]:
    """Return what decides which rank holds which part of the state."""
    parallel = config.parallel
    return {
        "world_size": config.world_size,
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
        "chunks": parallel.virtual_stages,
        "zero_stage": parallel.zero_stage,
    }


def _shape(config: RunConfig) -> dict[str, Any]:
    values = config.model.model_dump()
    return {name: values[name] for name in _SHAPE}


def first_line(error: BaseException) -> str:
    """Return the cause of an error in one line; torch wraps that of each rank."""
    failures = getattr(error, "failures", None)
    if failures:
        number, (cause, *_) = min(failures.items())
        return f"rank {number}: {first_line(cause)}"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def _nothing() -> None:
    """Stand for a write that is done when it returns, or that has failed."""
