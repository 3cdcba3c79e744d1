"""How a launch ended, by lines that launchers and trainers print."""

from __future__ import annotations

import re

from parlab.formats.grammar.records import MAX_TEXT, Ending

# A fast test that almost every line fails; the patterns below run on the rest.
# A line that ends a launch contains one of these: plain texts, since this is asked of most lines of a log.
SIGNS = (
    "CANCELLED", "Traceback", "Error", "Exception", "f memory", "f Memory", "F MEMORY", "exits successfully",
    "exits with", "exiting program", "SIGTERM", "SIGKILL", "Segmentation fault", "core dumped", "Interrupt",
    "saving the final model", "Training complete", "exited with", "Signal ",
)  # fmt: skip

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\*\*\* (?:STEP|JOB) \S+ .{0,80}CANCELLED AT \S+ DUE TO (?!TIME)"), "crashed"),
    (re.compile(r"\*\*\* (?:STEP|JOB) \S+ .{0,80}CANCELLED"), "cancelled"),
    (re.compile(r"srun: .{0,80}(?:CANCELLED|Force Terminated)"), "cancelled"),
    (re.compile(r"KeyboardInterrupt|(?:received|got) (?:signal )?SIG(?:TERM|INT)|Signal (?:2|15)\b"), "cancelled"),
    (re.compile(r"(?i:out of memory)|OutOfMemoryError"), "crashed"),
    (re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::|\s*$)"), "crashed"),
    (re.compile(r"Traceback \(most recent call last\)"), "crashed"),
    (re.compile(r"Segmentation fault|core dumped|SIGKILL|Signal (?:6|9|11)\b"), "crashed"),
    (re.compile(r"exited with (?:exit )?code [1-9]|exits with return code = -?[1-9]"), "crashed"),
    (re.compile(r"exiting program at iteration|exits successfully|saving the final model"), "finished"),
    (re.compile(r"Training completed?\b"), "finished"),
)  # fmt: skip


def ending(text: str) -> Ending | None:
    """Return how the launch ended, if the line shows it; a `Traceback` is replaced by the error that follows it."""
    for sign in SIGNS:
        if sign in text:
            break
    else:
        return None
    text = text[:1000]
    for pattern, state in _RULES:
        if pattern.search(text):
            return Ending(state, text.strip()[:MAX_TEXT])  # type: ignore[arg-type]  # _RULES names states only
    return None
