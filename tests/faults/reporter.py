"""A script outside of the cluster: `python -m tests.faults.reporter WITNESS` reports numbered steps over HTTP.

PARLAB_URL and PARLAB_TOKEN name the server. WITNESS gets the number of the last step that `log` has returned
from. After SIGTERM the script sends what is left, and ends with 0 if the server has everything.
"""

import os
import signal
import sys
import time

from parlab import init

EXPERIMENT = "Reports over HTTP"
STEP_S = 0.5


def main(witness: str) -> int:
    """Report until SIGTERM; return the exit code."""
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    run = init(EXPERIMENT, telemetry=False)
    descriptor = os.open(witness, os.O_CREAT | os.O_WRONLY)
    step = 0
    while not ends:
        step += 1
        run.log({"loss": float(step)}, step=step)
        os.pwrite(descriptor, b"%012d" % step, 0)
        time.sleep(STEP_S)
    return 0 if run.finish() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
