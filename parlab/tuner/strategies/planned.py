"""parlab's own strategy: measure the setting with the best prediction, and correct the predictions with it."""

from __future__ import annotations

import math

import numpy as np

from parlab.tuner import surrogate
from parlab.tuner.space import SURE, Candidate, Fit, Launch, Observation, Space
from parlab.tuner.surrogate import Measured, Prediction

from .memory_belief import MemoryBelief
from .steps import Steps

LEAST_MEASURED = 3
"""Measurements from which the planner's error is estimated, unless there are past runs."""
LEAST_GAIN, MOST_GAIN = 0.002, 0.01
"""A launch is never worth an expected gain below the first, however low the noise, and always one above the second."""
_PAST_NOISE = 0.03
_ENOUGH_PAST = 20


def planned(space: Space) -> Steps:
    """Launch the setting with the largest expected improvement; stop when that is below the measured noise.

    Settings that cannot fit are not launched. Settings that may fit are while failed launches remain rare
    (`MemoryBelief`); after an out of memory, no setting that needs as much memory. Failed trials are excluded and do
    not affect predictions.
    """
    knowledge, belief = _Knowledge(space), MemoryBelief(space)
    failed_in_row = 0
    while True:
        chances = belief.chances(knowledge.done)
        open_ = belief.affordable(knowledge.open(), chances, knowledge.done)
        if not open_:
            return "every setting that can fit was tried"
        if failed_in_row >= 3:
            return "three launches in a row failed; see their logs, then resume"
        prediction = knowledge.predict()
        best = knowledge.best_log()
        if best is None:
            choice, why = max(open_, key=lambda i: prediction.mean[i]), "best prediction"
        else:
            gain = surrogate.expected_gain(prediction, best) * chances
            choice = max(open_, key=lambda i: gain[i])
            if gain[choice] < knowledge.noise and knowledge.has_enough:
                return f"expected gain of another launch {gain[choice]:.1%}, less than the noise, {knowledge.noise:.1%}"
            why = f"expected gain {gain[choice]:.1%}"
        candidate = space.candidates[choice]
        border = f"; {chances[choice]:.0%} likely to fit into memory" if chances[choice] < SURE else ""
        belief.spend(chances[choice])
        observation = yield Launch(candidate.key, why + border, knowledge.expected(prediction, choice))
        knowledge.done[choice] = observation
        failed_in_row = failed_in_row + 1 if observation.state == "failed" else 0


class _Knowledge:
    """Data of the predictions: the plan, past runs, and the study's own launches by index of candidate."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.done: dict[int, Observation] = {}
        dimensions = len(space.candidates[0].features)
        own = surrogate.rows([candidate.features for candidate in space.candidates], dimensions)
        past = surrogate.rows([past.features for past in space.past], dimensions)
        middle = own.mean(axis=0)
        self.features, self.past_features = own - middle, past - middle
        self.past_residuals = np.log([past.planned_over_measured for past in space.past])
        self.prior = np.array([_log_prior(space, candidate) for candidate in space.candidates])
        self.shape = surrogate.likeliest_shape(self._measured()) if self.has_past else surrogate.Shape()

    @property
    def has_past(self) -> bool:
        return len(self.space.past) >= _ENOUGH_PAST

    @property
    def has_enough(self) -> bool:
        return len(self._ran()) >= (2 if self.has_past else LEAST_MEASURED)

    @property
    def noise(self) -> float:
        """Relative error of the best measurement so far."""
        best = max(self._ran(), key=self._log_value)
        return min(max(LEAST_GAIN, self.done[best].noise), MOST_GAIN)

    def open(self) -> list[int]:
        """Return the untried candidates that can fit, by the planner and by the trials that ran out of memory."""
        oom = [self.space.candidates[i] for i, observation in self.done.items() if observation.state == "oom"]
        return [
            i
            for i, candidate in enumerate(self.space.candidates)
            if i not in self.done
            and candidate.fit != Fit.NO
            and not any(_needs_as_much(candidate, other) for other in oom)
        ]

    def best_log(self) -> float | None:
        return max((self._log_value(i) for i in self._ran()), default=None)

    def predict(self) -> Prediction:
        measured = self._measured()
        if not self.has_past:
            self.shape = surrogate.likeliest_shape(measured)
        return surrogate.predict(measured, self.features, self.prior, self.shape)

    def expected(self, prediction: Prediction, index: int) -> float | None:
        """Return the predicted value of a candidate; None while the scale of unplanned times is unknown."""
        if self.space.candidates[index].predicted_s is None and not (self.done or self.has_past):
            return None
        return math.exp(prediction.mean[index])

    def _measured(self) -> Measured:
        ran = self._ran()
        own = np.array([self._log_value(i) - self.prior[i] for i in ran])
        noise = [*[_PAST_NOISE] * len(self.past_residuals), *[self.done[i].noise for i in ran]]
        return Measured(
            np.concatenate([self.past_features, self.features[ran]]),
            np.concatenate([self.past_residuals, own]),
            np.asarray(noise, dtype=np.float64),
        )

    def _ran(self) -> list[int]:
        return [i for i, observation in self.done.items() if observation.ran]

    def _log_value(self, index: int) -> float:
        return math.log(self.space.score(self.done[index]) or 0)


def _log_prior(space: Space, candidate: Candidate) -> float:
    """Return the logarithm of the planned value; without a plan, all candidates have the same time per sample."""
    seconds = candidate.samples / candidate.devices if candidate.predicted_s is None else candidate.predicted_s
    return math.log(candidate.value(space.objective, max(seconds, 1e-12)))


def _needs_as_much(candidate: Candidate, other: Candidate) -> bool:
    if candidate.predicted_bytes is not None and other.predicted_bytes is not None:
        return candidate.predicted_bytes >= other.predicted_bytes
    same = candidate.tuning_space == other.tuning_space
    return same and candidate.micro_batch_size >= other.micro_batch_size
