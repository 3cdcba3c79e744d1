"""Report a training with parlab's client."""

import parlab
from parlab.demo.scripts.training import SETTINGS, steps

with parlab.init("Four ways in", name="parlab client", config=SETTINGS) as run:
    for step in steps(seed=1):
        run.log({"train/loss": step.loss, "samples_per_s": step.samples_per_s}, step=step.number)
