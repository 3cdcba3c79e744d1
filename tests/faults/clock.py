"""Clocks of single services that jump, by libfaketime: Debian's package, or `pip install libfaketime`."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def preload() -> Path | None:
    """Return libfaketime, or None where it is not installed."""
    spec = importlib.util.find_spec("libfaketime")
    packaged = [Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"] if spec and spec.origin else []
    installed = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return next((path for path in [*packaged, *installed] if path.exists()), None)


def environment(path: Path) -> dict[str, str]:
    """Return the variables of a process whose clock is as far off as the file says; none without libfaketime."""
    preloaded = preload()
    if preloaded is None:
        return {}
    set_offset(path, 0)
    return {
        "LD_PRELOAD": str(preloaded),
        "FAKETIME_TIMESTAMP_FILE": str(path),
        "FAKETIME_CACHE_DURATION": "1",
        # Only the clock of the day jumps, as it does when an administrator or NTP sets it.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def set_offset(path: Path, seconds: int) -> None:
    """Let the clock of all processes that read this file be off by so many seconds."""
    new = path.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.replace(path)
