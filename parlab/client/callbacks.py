"""Callbacks of trainers: each has the methods that its trainer calls; only Lightning's needs classes of its trainer."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from parlab.client.run import Run, init
from parlab.client.stopping import CHECKPOINT_DIRECTORY, CHECKPOINTED, replace_handlers, should_stop

_DEEPSPEED_TIMERS = {
    f"Train/Samples/elapsed_time_ms_{name}": timer
    for name, timer in {
        "forward": "forward-compute",
        "backward": "backward-compute",
        "backward_inner": "backward-inner",
        "backward_allreduce": "backward-allreduce",
        "step": "optimizer",
    }.items()
}
"""Timers of DeepSpeed's `wall_clock_breakdown` -> those of engines; they are of one step, in ms."""
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


class HuggingFaceCallback:
    """For `transformers.Trainer(callbacks=[...])`: settings at the start, then what the trainer logs.

    Without `run`, it starts one when the training begins and finishes it with the training.
    """

    def __init__(self, run: Run | None = None, *, experiment: str = "Default", name: str = "") -> None:
        self.run = run
        self._is_own = run is None
        self._experiment = experiment
        self._name = name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the run, or add the trainer's settings to it."""
        config = args.to_dict()
        model: Any = getattr(kwargs.get("model"), "config", None)
        if hasattr(model, "to_dict"):
            config = {**model.to_dict(), **config}
        config["world_size"] = getattr(args, "world_size", 1)
        if self.run is None:
            self.run = init(self._experiment, config, name=self._name or str(getattr(args, "run_name", "") or ""))
        else:
            self.run.update_config(config)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record what the trainer logs; ranks other than the first log nothing."""
        if self.run is not None and getattr(state, "is_world_process_zero", True):
            self.run.log(_numbers(logs or {}), step=int(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish the run that the callback started."""
        if self.run is not None and self._is_own:
            self.run.finish()
            self.run = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)


class HuggingFaceStop:
    """For `transformers.Trainer(callbacks=[...])`: a warned training saves after its step, then exits with 85.

    The next start continues with `trainer.train(resume_from_checkpoint=...)`; `output_dir` may be
    PARLAB_CHECKPOINT_DIR. Placed last, so that callbacks before it see the end of the training.
    """

    def __init__(self) -> None:
        self._stops = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take warnings from here on."""
        should_stop()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the Trainer save and stop if any rank was warned."""
        if _is_any(should_stop(), getattr(args, "device", "cpu")):
            self._stops = control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exit, if that is why the training ended."""
        if self._stops:
            raise SystemExit(CHECKPOINTED)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)


def _is_any(answer: bool, device: Any) -> bool:
    """Return whether the answer is true on any rank of torch's default group."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return answer
    votes = torch.tensor([float(answer)], device=device)
    torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
    return bool(votes.item() > 0)


class DeepSpeedMonitor:
    """For `engine.monitor = DeepSpeedMonitor(run, engine.monitor)`: records the events and passes them on.

    DeepSpeed counts samples; with `batch_size=engine.train_batch_size()` they become steps.
    """

    enabled = True

    def __init__(self, run: Run, monitor: Any = None, *, batch_size: int = 1) -> None:
        """Raise ValueError for a batch size below 1."""
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} must be at least 1; use engine.train_batch_size()")
        self._run = run
        self._monitor = monitor
        self._batch_size = batch_size
        if batch_size > 1:
            run.update_config({"train_batch_size": batch_size})

    def write_events(self, event_list: Iterable[tuple[str, Any, int]]) -> None:
        """Record (name, value, samples) triples."""
        events = list(event_list)
        by_step: dict[int, dict[str, Any]] = {}
        for name, value, samples in events:
            by_step.setdefault(int(samples) // self._batch_size, {})[name] = value
        for step, values in by_step.items():
            timers = {name: values.pop(name) for name in list(values) if name in _DEEPSPEED_TIMERS}
            self._run.add_timers({_DEEPSPEED_TIMERS[name]: float(ms) / 1e3 for name, ms in timers.items()})
            self._run.log(values, step=step)
        if getattr(self._monitor, "enabled", False):
            self._monitor.write_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)


def LightningCallback(run: Run | None = None, *, experiment: str = "Default", name: str = "") -> Any:
    """Return a callback for `Trainer(callbacks=[...])`: hyperparameters, and what modules log, beside other loggers.

    Without `run`, it starts one when the training begins and finishes it with the training. Raises ImportError where
    Lightning is not installed.
    """
    lightning = _lightning()
    logger_class = _lightning_logger(lightning)

    class Callback(lightning.Callback):  # type: ignore[misc, name-defined]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if stage != "fit" or any(isinstance(logger, logger_class) for logger in trainer.loggers):
                return
            settings = {
                "world_size": trainer.world_size,
                "precision": trainer.precision,
                "accumulate_grad_batches": trainer.accumulate_grad_batches,
            }
            if run is None:
                # Lightning's own launcher leaves no variable by which ranks could agree on a run.
                run_id = os.environ.get("PARLAB_RUN_ID") or trainer.strategy.broadcast(uuid.uuid4().hex)
                own = init(experiment, settings, name=name, rank=trainer.global_rank, run_id=run_id)
            else:
                run.update_config(settings)
            self._logger = logger_class(own if run is None else run, is_own=run is None)
            trainer.loggers = [*trainer.loggers, self._logger]

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            size = getattr(trainer.train_dataloader, "batch_size", None)
            if hasattr(self, "_logger") and isinstance(size, int):
                self._logger.log_hyperparams({"per_device_train_batch_size": size})

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if hasattr(self, "_logger"):
                self._logger.exception = exception

    return Callback()


def LightningStop(directory: str | None = None) -> Any:
    """Return a callback for `Trainer(callbacks=[...])`: a warned training saves after its batch, then exits with 85.

    It writes `step-<global step>.ckpt` to `directory`, by default PARLAB_CHECKPOINT_DIR; the next start continues with
    `trainer.fit(..., ckpt_path=...)`. Raises ImportError where Lightning is not installed.
    """
    lightning = _lightning()
    place = directory or os.environ.get(CHECKPOINT_DIRECTORY) or os.getcwd()

    class Stop(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            replace_handlers()

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.strategy.reduce_boolean_decision(should_stop(), all=False):
                trainer.save_checkpoint(os.path.join(place, f"step-{trainer.global_step}.ckpt"))
                raise SystemExit(CHECKPOINTED)

    return Stop()


def _lightning() -> ModuleType:
    """Return the package of Lightning that the script uses."""
    for package in sorted(_LIGHTNING, key=lambda package: package not in sys.modules):
        try:
            return importlib.import_module(package)
        except ImportError:
            continue
    raise ImportError("LightningCallback needs Lightning: pip install lightning")


def _lightning_logger(lightning: ModuleType) -> Any:
    loggers = importlib.import_module(f"{lightning.__name__}.loggers")

    class Logger(loggers.Logger):  # type: ignore[misc, name-defined]
        name = "parlab"

        def __init__(self, run: Run, *, is_own: bool) -> None:
            super().__init__()
            self._run = run
            self._is_own = is_own
            self.exception: BaseException | None = None

        @property
        def version(self) -> str:
            return self._run.id

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            self._run.update_config(params)

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            # Lightning calls loggers on every rank and leaves it to them that only the first one writes.
            if self._run.rank <= 0:
                self._run.log(metrics, step=step)

        def finalize(self, status: str) -> None:
            if not self._is_own:
                return
            error = self.exception
            if isinstance(error, KeyboardInterrupt):
                self._run.finish(state="cancelled", reason="interrupted from the keyboard")
            elif isinstance(error, SystemExit) and isinstance(error.code, int):
                self._run.finish(exit_code=error.code, reason=f"exit code {error.code}" if error.code else "")
            elif error is not None or status == "failed":
                trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)) if error else ""
                reason = f"{type(error).__name__}: {error}"[:1000] if error else "failed"
                self._run.finish(exit_code=1, reason=reason, trace=trace)
            else:
                self._run.finish()

    return Logger


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, (str, bytes))}


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Stand for the events of a trainer that nothing is recorded of."""
