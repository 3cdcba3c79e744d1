"""A training that reports nothing and prints lines like nanoGPT; `parlab run` reads them."""

import sys

from parlab.demo.scripts.training import steps

for step in steps(seed=3):
    sys.stdout.write(f"iter {step.number}: loss {step.loss:.4f}, time {step.step_time_ms:.2f}ms, mfu -100.00%\n")
    sys.stdout.flush()
