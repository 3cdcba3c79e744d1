"""Damage done to texts: what disks, terminals, editors and people do to a log."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Mutation = Callable[[random.Random, str], str]

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BAD_NUMBERS = (
    "1e400", "-1e400", "nan", "NaN", "inf", "-inf", "9" * 40, "0", "-1", "", "1e-400", "1.2.3", "--5", "1_000", "٣",
    "²", "1,2,3", "0x10", "1e", ".", "9007199254740993", "1" * 5000,
)  # fmt: skip
_INSERTS = (
    "\x00", "\x1b[31m", "\x1b[", "\r", "|", " | ", ":", "...", "\ufffd", "\u2028", "iteration ", "[Rank 3] ", "{", "}",
    "```\n", "0: ", "\x85", "\\ud83d", "=====\n", "(", "`", "**", "<!--", ".. image::", "\t", "time (ms) | ", "\\",
)  # fmt: skip


def cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def behead(rng: random.Random, text: str) -> str:
    return text[rng.randrange(len(text) + 1) :]


def double_lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines) + 1)
    return "".join(lines[:at] + lines[max(0, at - 5) :])


def shuffle_lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    rng.shuffle(lines)
    return "".join(lines)


def drop_span(rng: random.Random, text: str) -> str:
    begin = rng.randrange(len(text) + 1)
    return text[:begin] + text[begin + rng.randrange(200) :]


def join_lines(rng: random.Random, text: str) -> str:
    return text.replace("\n", rng.choice(["", " ", "\r"]), rng.randrange(1, 6))


def wrong_encoding(rng: random.Random, text: str) -> str:
    wrong, read = rng.choice([("utf-16", "utf-8"), ("utf-16-le", "utf-8"), ("utf-8", "latin-1"), ("cp037", "utf-8")])
    return text.encode(wrong, "replace").decode(read, "replace")


def bad_number(rng: random.Random, text: str) -> str:
    numbers = list(_NUMBER.finditer(text))
    for match in rng.sample(numbers, min(len(numbers), 3)):
        text = text[: match.start()] + rng.choice(_BAD_NUMBERS) + text[match.end() :]
    return text


def insert(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_INSERTS) * rng.choice([1, 1, 1, 50]) + text[at:]
    return text


def swap_bytes(rng: random.Random, text: str) -> str:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.randrange(1, 20)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return data.decode("utf-8", "replace")


MUTATIONS: tuple[Mutation, ...] = (
    cut, behead, double_lines, shuffle_lines, drop_span, join_lines, wrong_encoding, bad_number, bad_number, insert,
    swap_bytes,
)  # fmt: skip


def damaged(rng: random.Random, text: str) -> str:
    """Damage a text one to four times; it does not grow beyond some kilobytes."""
    for _ in range(rng.randrange(1, 5)):
        text = rng.choice(MUTATIONS)(rng, text)[:8_000]
    return text
