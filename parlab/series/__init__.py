"""Series of numbers, raw output and timelines of ranks, in compressed chunks. See docs/understand/measurements.md."""
