"""Functions that tests have a child call; it has no Django."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def echoed(value: Any) -> Any:
    print("a library says something")
    return value


def counted(number: int) -> Iterator[int]:
    yield from range(number)


def environment() -> dict[str, str]:
    return dict(os.environ)


def greedy() -> int:
    return len(bytearray(1 << 30))


def endless() -> None:
    while True:
        pass


def damaged() -> None:
    raise KeyError("field 7")


def killed() -> None:
    os.abort()
