"""Convert a token budget to days, GPU hours and cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, log, sqrt

from parlab.planner.prediction.prediction import Prediction

_DAY_S = 86_400
_QUANTILE = 1.2816
"""Standard deviations around the median between which 80 % of a normal distribution lie."""


@dataclass(frozen=True)
class Budget:
    """A whole training at the predicted speed, without failures and restarts."""

    tokens: float
    iterations: float
    days: float
    days_low: float
    days_high: float
    """Days if the iteration is shorter (`days_low`) or longer (`days_high`); 80 % of such predictions lie within."""
    gpu_hours: float
    cost: float | None
    """In the currency of the price; None without a price."""

    def chance(self, days: float) -> float:
        """Return the probability that the training takes at most so many days, by a log-normal distribution."""
        return self._below(days / self.days)

    def cost_chance(self, cost: float) -> float | None:
        """Return the probability that the training costs at most so much; None without a price."""
        return None if self.cost is None else self._below(cost / self.cost if self.cost else float("inf"))

    def _below(self, ratio: float) -> float:
        deviation = log(self.days_high / self.days) / _QUANTILE
        if ratio <= 0 or deviation <= 0:
            return float(ratio >= 1)
        return 0.5 * erfc(-log(ratio) / (deviation * sqrt(2)))


def budget(prediction: Prediction, tokens: float, price_per_gpu_hour: float | None = None) -> Budget:
    """Return days, GPU hours and cost of training on `tokens` tokens.

    Iterations are `tokens` over the tokens of one iteration. Raises ValueError for tokens or a price out of range.
    """
    if not 0 < tokens <= 1e18:
        raise ValueError(f"tokens {tokens:g} is out of range; use more than 0 and at most 1e18")
    if price_per_gpu_hour is not None and not 0 <= price_per_gpu_hour <= 1e6:
        raise ValueError(f"price_per_gpu_hour {price_per_gpu_hour:g} is out of range; use 0 to 1e6")
    iterations = tokens / prediction.job.tokens
    days = iterations * prediction.iteration_s / _DAY_S
    gpu_hours = days * 24 * prediction.job.world_size
    return Budget(
        tokens,
        iterations,
        days,
        days / (1 + prediction.spread),
        days * (1 + prediction.spread),
        gpu_hours,
        None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour,
    )
