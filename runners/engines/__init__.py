"""Engines, one module each."""

from runners.supervisor import streams

# Before an engine imports torch, so that what imports print also belongs to the stream of the rank. Without the
# variable of the supervisor nothing happens.
streams.take(streams.own_rank())
