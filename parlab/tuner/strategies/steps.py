from collections.abc import Generator

from parlab.tuner.space import Launch, Observation

Steps = Generator[Launch, Observation, str]
"""What a running strategy is: yields launches, is sent observations, returns why it stopped."""
