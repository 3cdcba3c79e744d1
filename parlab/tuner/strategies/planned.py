"""parlab's own strategy: what the planner promises most, measured, and the planner corrected by it."""

from __future__ import annotations

import math

import numpy as np

from parlab.tuner import surrogate
from parlab.tuner.space import Candidate, Fit, Launch, Observation, Space
from parlab.tuner.surrogate import Measured, Prediction

from .steps import Steps

LEAST_MEASURED = 3
"""Fewer say nothing about how far the planner can be trusted here, unless other workloads told it."""
LEAST_GAIN, MOST_GAIN = 0.002, 0.01
"""An expected gain below the first is not worth a launch, however quiet the machine is; one above the second always."""
_PAST_NOISE = 0.03
_ENOUGH_PAST = 20


def planned(space: Space) -> Steps:
    """Launch where the expected improvement is largest; stop where it is below the noise that was measured.

    What cannot fit is not launched. Of what may fit, the most promising at the border is tried, and after an out of
    memory nothing that needs as much. Failures teach nothing about speed and are only left out.
    """
    knowledge = _Knowledge(space)
    failed_in_row = 0
    while True:
        open_ = knowledge.open()
        if not open_:
            return "every setting that can fit was tried"
        if failed_in_row >= 3:
            return "three launches after each other failed; see their logs, then resume"
        prediction = knowledge.predict()
        best = knowledge.best_log()
        if best is None:
            choice, why = max(open_, key=lambda i: prediction.mean[i]), "the best that is expected"
        else:
            gain = surrogate.expected_gain(prediction, best)
            choice = max(open_, key=lambda i: gain[i])
            if gain[choice] < knowledge.noise and knowledge.has_enough:
                return (
                    f"another launch is expected to gain {gain[choice]:.1%}, less than the noise, {knowledge.noise:.1%}"
                )
            why = f"expected gain {gain[choice]:.1%}"
        candidate = space.candidates[choice]
        border = "; at the border of memory" if candidate.fit == Fit.UNSURE else ""
        observation = yield Launch(candidate.key, why + border, knowledge.expected(prediction, choice))
        knowledge.done[choice] = observation
        failed_in_row = failed_in_row + 1 if observation.state == "failed" else 0


class _Knowledge:
    """What a study knows at a moment: the plan, the past, and its own launches by index of candidate."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.done: dict[int, Observation] = {}
        dimensions = len(space.candidates[0].features)
        own = surrogate.rows([candidate.features for candidate in space.candidates], dimensions)
        past = surrogate.rows([known.features for known in space.past], dimensions)
        middle = own.mean(axis=0)
        self.features, self.past_features = own - middle, past - middle
        self.past_residuals = np.log([known.planned_over_measured for known in space.past])
        self.prior = np.array([_log_prior(space, candidate) for candidate in space.candidates])
        self.shape = surrogate.likeliest_shape(self._known()) if self.has_past else surrogate.Shape()

    @property
    def has_past(self) -> bool:
        return len(self.space.past) >= _ENOUGH_PAST

    @property
    def has_enough(self) -> bool:
        return len(self._ran()) >= (2 if self.has_past else LEAST_MEASURED)

    @property
    def noise(self) -> float:
        """Relative error of the best that was measured so far."""
        best = max(self._ran(), key=self._log_value)
        return min(max(LEAST_GAIN, self.done[best].noise), MOST_GAIN)

    def open(self) -> list[int]:
        """Candidates that can fit, as the planner says and as those say that ran out of memory, and are not tried."""
        burst = [self.space.candidates[i] for i, seen in self.done.items() if seen.state == "oom"]
        return [
            i
            for i, candidate in enumerate(self.space.candidates)
            if i not in self.done
            and candidate.fit != Fit.NO
            and not any(_needs_as_much(candidate, other) for other in burst)
        ]

    def best_log(self) -> float | None:
        return max((self._log_value(i) for i in self._ran()), default=None)

    def predict(self) -> Prediction:
        known = self._known()
        if not self.has_past:
            self.shape = surrogate.likeliest_shape(known)
        return surrogate.predict(known, self.features, self.prior, self.shape)

    def expected(self, prediction: Prediction, index: int) -> float | None:
        """Value that is expected of a candidate; None while nothing tells the scale of an unplanned time."""
        if self.space.candidates[index].predicted_s is None and not (self.done or self.has_past):
            return None
        return math.exp(prediction.mean[index])

    def _known(self) -> Measured:
        ran = self._ran()
        own = np.array([self._log_value(i) - self.prior[i] for i in ran])
        noise = [*[_PAST_NOISE] * len(self.past_residuals), *[self.done[i].noise for i in ran]]
        return Measured(
            np.concatenate([self.past_features, self.features[ran]]),
            np.concatenate([self.past_residuals, own]),
            np.asarray(noise, dtype=np.float64),
        )

    def _ran(self) -> list[int]:
        return [i for i, seen in self.done.items() if seen.ran]

    def _log_value(self, index: int) -> float:
        return math.log(self.space.score(self.done[index]) or 0)


def _log_prior(space: Space, candidate: Candidate) -> float:
    """Logarithm of the planned value; without a plan all times are alike per sample."""
    seconds = candidate.samples / candidate.devices if candidate.predicted_s is None else candidate.predicted_s
    return math.log(candidate.value(space.objective, max(seconds, 1e-12)))


def _needs_as_much(candidate: Candidate, burst: Candidate) -> bool:
    if candidate.predicted_bytes is not None and burst.predicted_bytes is not None:
        return candidate.predicted_bytes >= burst.predicted_bytes
    same = candidate.tuning_space == burst.tuning_space
    return same and candidate.micro_batch_size >= burst.micro_batch_size
