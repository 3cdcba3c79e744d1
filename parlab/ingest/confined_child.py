"""The child of `confined`: `python -m parlab.ingest.confined_child MEMORY_BYTES SECONDS`, until its input ends.

A request and an answer are one line of JSON each: {"function": "module:name", "arguments": [...]}, and ["item", value]
as often as needed, then ["end", null]; or ["refused", text], or ["memory", null].
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import IO, Any


def main(memory_bytes: int, seconds: int) -> None:
    """Answer requests under the limits."""
    os.umask(0o077)
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, seconds),
    ):
        resource.setrlimit(limit, (value, value))
    for line in sys.stdin:
        request = json.loads(line)
        _answer(request["function"], request["arguments"], answers)


def _answer(name: str, arguments: list[Any], answers: IO[str]) -> None:
    try:
        module, _, function = name.partition(":")
        result = getattr(import_module(module), function)(*arguments)
        for item in result if isinstance(result, Iterator) else [result]:
            _write(answers, "item", item)
        last: tuple[str, str | None] = ("end", None)
    except MemoryError:
        last = ("memory", None)
    except ValueError as problem:
        last = ("refused", str(problem))
    # A damaged file decides which error its library raises.
    except Exception as problem:
        last = ("refused", f"it cannot be read ({type(problem).__name__}: {str(problem)[:200]})")
    _write(answers, *last)


def _write(answers: IO[str], kind: str, value: Any) -> None:
    answers.write(json.dumps([kind, value]) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
