"""Lock files: the versions that two of them pin differently, and the locks between them; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .commits import OPTION as COMMIT

OPTION, PIP = "--lock", "--pip"
"""Options of runners/node/launch/at_commit.py: the pins to install, and the options of pip."""
LONGEST = 4_000
"""Characters of a lock in one argument of a command."""
MAX_CHARACTERS = 500_000
_PIN = re.compile(r"([A-Za-z0-9][\w.-]{0,99})(?:\[[\w,\s.-]{0,100}\])?\s{0,9}===?\s{0,9}([\w.+!-]{1,80})")
_REST = re.compile(r"#|;|\s--hash")
"""Where a comment, a marker or the hashes of a requirement begin."""


class LockStep(NamedTuple):
    """A lock between two others: the good one with some of the versions of the bad one."""

    sha: str
    """Digest of its pins."""
    subject: str
    """The change that it adds to the lock before it."""
    pins: str
    """name==version, separated by spaces."""


def read_lock(text: str, name: str) -> dict[str, str]:
    """Return the version of each package in a lock file (requirements.txt with pins); raise ValueError."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(text)} characters; use a lock file of at most {MAX_CHARACTERS}")
    pins: dict[str, str] = {}
    for line in text.splitlines():
        requirement = _REST.split(line, maxsplit=1)[0].strip().rstrip("\\").strip()
        if not requirement or requirement.startswith("-"):
            continue  # a comment, an option or a hash
        for part in requirement.split() if requirement.count("==") > 1 else [requirement]:
            match = _PIN.fullmatch(part)
            if match is None:
                raise ValueError(f"{name}: {part[:60]!r} pins no version; use name==version in each line")
            pins[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    if not pins:
        raise ValueError(f"{name} has no pins; use lines such as numpy==2.4.6")
    return pins


def steps_between(good: str, bad: str) -> list[LockStep]:
    """Return the locks from the good to the bad one, which differ by one package each; raise ValueError."""
    before, after = read_lock(good, "good lock"), read_lock(bad, "bad lock")
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if not names:
        raise ValueError("both lock files pin the same versions; use locks that differ")
    current = dict(before)
    steps = [_step(current, "good lock")]
    for name in names:
        current.pop(name, None)
        if name in after:
            current[name] = after[name]
        steps.append(_step(current, f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"))
    return steps


def with_lock(data: Mapping[str, Any], pins: str) -> dict[str, Any]:
    """Return a configuration whose command installs a lock; raise ValueError if it has no place for it."""
    argv = [str(part) for part in (data.get("command") or {}).get("argv") or []]
    if OPTION in argv[:-1]:
        argv[argv.index(OPTION) + 1] = pins
    elif PIP in argv and COMMIT in argv:
        argv += [OPTION, pins]
    else:
        raise ValueError(
            f"command.argv installs no lock; use runners/node/launch/at_commit.py with {PIP} and its options before"
            f" {COMMIT}, or end it with {OPTION} and pins, see docs/use/watch.md"
        )
    return {**data, "command": {**data["command"], "argv": argv}}


def _step(pins: dict[str, str], subject: str) -> LockStep:
    text = " ".join(f"{name}=={version}" for name, version in sorted(pins.items()))
    if len(text) > LONGEST:
        raise ValueError(
            f"the lock has {len(text)} characters of pins; leave out packages that both locks pin alike, and install"
            f" them on the nodes, until it has at most {LONGEST}"
        )
    return LockStep(digest_of(text), subject, text)


def digest_of(pins: str) -> str:
    """Return the name of a lock in results."""
    return hashlib.sha256(pins.encode()).hexdigest()[:40]
