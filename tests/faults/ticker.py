"""The training of these runs: `ticker.py RANKS DIRECTORY` prints steps with known values until it is ended.

Each rank is a process. After each line it stores the number of its step in DIRECTORY, which bears witness to what
was printed. Standard library only, because dozens of them run at the same time.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.5


def loss_of(rank: int, step: int) -> float:
    """Return the value that a rank prints at a step."""
    return rank * 1e6 + step


def tick(rank: int, witness: Path) -> None:
    """Print steps for ever; after SIGUSR1, take memory until the kernel ends this."""
    signal.signal(signal.SIGUSR1, lambda *_: list(iter(lambda: bytearray(os.urandom(1 << 20)), None)))
    witness.with_suffix(".pid").write_text(str(os.getpid()))
    descriptor = os.open(witness, os.O_CREAT | os.O_WRONLY)
    step = 0
    while True:
        step += 1
        event = {"parlab": 1, "t": time.time(), "rank": rank, "event": "step", "step": step}
        line = json.dumps({**event, "step_time_s": STEP_S, "loss": loss_of(rank, step)}, separators=(",", ":")) + "\n"
        os.write(1, line.encode())
        os.pwrite(descriptor, b"%012d" % step, 0)
        time.sleep(STEP_S)


def main() -> None:
    """Start the ranks of this node and wait for the first that ends."""
    count, directory = int(sys.argv[1]), Path(sys.argv[2])
    run, attempt = os.environ["PARLAB_RUN"].partition(":")[2].split("/")[:2]
    first = int(os.environ.get("NODE_RANK", "0")) * count
    ranks = {}
    for rank in range(first, first + count):
        pid = os.fork()
        if not pid:
            tick(rank, directory / f"{run}-{attempt}-{rank}")
        ranks[pid] = rank
    pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    death = {"parlab": 1, "t": time.time(), "rank": ranks.pop(pid), "event": "death", "host": "", "code": code}
    os.write(1, json.dumps(death, separators=(",", ":")).encode() + b"\n")
    for other in ranks:
        os.kill(other, signal.SIGTERM)
    sys.exit(1)


if __name__ == "__main__":
    main()
