"""`ticking.py COUNT DELAY_S`: a command that prints its ticks and ends."""

from __future__ import annotations

import os
import sys
import time

print("started in", os.environ["POD_NAME"], flush=True)
for number in range(1, int(sys.argv[1]) + 1):
    print("tick", number, flush=True)
    time.sleep(float(sys.argv[2]))
print("done", flush=True)
