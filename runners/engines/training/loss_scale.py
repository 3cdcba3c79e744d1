"""Loss scaling, which keeps fp16 gradients from underflowing."""

from __future__ import annotations

from collections.abc import Mapping

INITIAL_SCALE = 2.0**16
WINDOW = 1000
"""Consecutive steps without overflow after which the scale is doubled."""
HYSTERESIS = 2
"""Overflows after which the scale is halved."""


class LossScale:
    """A constant loss scale, or a dynamic one (`constant` None).

    Source: Megatron-LM 2.2, optimizer/grad_scaler.py (DynamicGradScaler).
    """

    def __init__(self, constant: float | None) -> None:
        self.value = INITIAL_SCALE if constant is None else constant
        self._is_dynamic = constant is None
        self._good_steps = 0
        self._patience = HYSTERESIS

    def state(self) -> dict[str, float]:
        """Return what later updates depend on."""
        return {"value": self.value, "good_steps": self._good_steps, "patience": self._patience}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from a state; a constant scale stays as it is."""
        if self._is_dynamic:
            self.value = state["value"]
            self._good_steps, self._patience = int(state["good_steps"]), int(state["patience"])

    def update(self, *, is_finite: bool) -> None:
        """Update the scale after a step; `is_finite` is False for a step skipped because of an overflow."""
        if not self._is_dynamic:
            return
        if is_finite:
            self._good_steps += 1
            if self._good_steps == WINDOW:
                self._good_steps, self._patience = 0, HYSTERESIS
                self.value *= 2.0
            return
        self._good_steps = 0
        self._patience -= 1
        if self._patience <= 0:
            self.value = max(self.value / 2.0, 1.0)
