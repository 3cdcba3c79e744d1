from collections.abc import Generator

from parlab.tuner.space import Launch, Observation

Steps = Generator[Launch, Observation, str]
"""A running strategy: yields launches, receives observations, returns why it stopped."""
