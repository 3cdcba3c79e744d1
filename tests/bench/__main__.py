"""Run benchmarks, print each figure as it is measured and keep it in build/bench.json."""

import argparse
import signal
import sys
from itertools import chain
from pathlib import Path

from tests.bench import ROOT
from tests.bench.campaigns.registry import CAMPAIGNS
from tests.bench.data_directory import data_directory
from tests.bench.registry import BENCHMARKS
from tests.bench.result import Scale
from tests.bench.running import interrupt, run_all

OUTPUT = ROOT / "build" / "bench.json"
QUICK_OUTPUT = OUTPUT.with_name("bench-quick.json")


def main() -> int:
    """Run the named benchmarks and campaigns, by default all benchmarks of `make bench`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks or campaigns, separated by spaces or commas")
    parser.add_argument("--quick", action="store_true", help="only check that they run: small sizes, one repeat")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"output file (JSON); default: build/{OUTPUT.name}")
    arguments = parser.parse_args()
    output = arguments.output or (QUICK_OUTPUT if arguments.quick else OUTPUT)
    groups = {campaign.name: campaign.benchmarks for campaign in CAMPAIGNS}
    groups |= {benchmark.name: (benchmark,) for benchmark in chain(BENCHMARKS, *groups.values())}
    names = [name for names in arguments.names for name in names.split(",") if name]
    if unknown := [name for name in names if name not in groups]:
        sys.stderr.write(f"unknown benchmark {', '.join(unknown)}; use {', '.join(groups)}\n")
        return 2
    chosen = list(chain.from_iterable(groups[name] for name in names)) or BENCHMARKS
    signal.signal(signal.SIGTERM, interrupt)
    with data_directory():
        return run_all(chosen, Scale(is_quick=arguments.quick), output)


if __name__ == "__main__":
    sys.exit(main())
