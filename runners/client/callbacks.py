"""Callbacks of trainers. They import no trainer: each has the methods that the trainer calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from runners.client.run import Run, init


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


class DeepSpeedMonitor:
    """For `engine.monitor = DeepSpeedMonitor(run, engine.monitor)`: records the events and passes them on."""

    enabled = True

    def __init__(self, run: Run, monitor: Any = None) -> None:
        self._run = run
        self._monitor = monitor

    def write_events(self, event_list: Iterable[tuple[str, Any, int]]) -> None:
        """Record (name, value, step) triples; DeepSpeed counts samples as its steps."""
        events = list(event_list)
        by_step: dict[int, dict[str, Any]] = {}
        for name, value, step in events:
            by_step.setdefault(int(step), {})[name] = value
        for step, values in by_step.items():
            self._run.log(values, step=step)
        if getattr(self._monitor, "enabled", False):
            self._monitor.write_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, (str, bytes))}


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Stand for the events of a trainer that nothing is recorded of."""
