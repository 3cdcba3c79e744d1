"""The real daemon, with one more engine in its table."""

from __future__ import annotations

import sys

from runners.node.daemon import main
from tests.runners.toy_engine import register

if __name__ == "__main__":
    register()
    sys.exit(main(measure=lambda *_: None))
