"""Lines that the DeepSpeed engine prints between those of a trainer, read before the trainer's reader sees them.

That reader could take a timer for one of its own, or `step=10` for its step: engines count from another start. Only
Megatron-DeepSpeed counts as its engine does.
"""

from __future__ import annotations

import re

from parlab.formats.grammar.prefixes import peel_line, strip_prefix
from parlab.formats.grammar.records import Record
from parlab.formats.logs.deepspeed import Parser

_TAG = re.compile(r"\[(?:INFO|WARNING|DEBUG|ERROR)\] \[[\w.-]{1,60}\.py:\d{1,6}:\w{1,60}\]")
# A line of a printed object; others are of another process.
_JSON = re.compile(r'\s*(?:"|[{}\[\]][\s,{}\[\]]*$|(?:-?\d[\d.e+-]*|true|false|null),?\s*$)')
# Every rank says so before the configuration is printed: after that it is another launch in the same file.
_BEGINS = re.compile(r"Initializing (?:torch distributed|TorchBackend)")
# Behind a bar, which ends without a line feed.
_BEHIND = re.compile(r"(?<=[\])])\s?(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6}\] \[[A-Z]{4,7}\] \[)")


class Engine:
    """Reads the engine's lines of one file."""

    def __init__(self, trainer: str) -> None:
        self.parser = Parser()
        self.shares_steps = trainer == "megatron"
        self.has_begun = False
        self.goes_on = False
        """Whether the next line may belong to the engine's without a tag."""

    def split(self, text: str) -> tuple[str, str]:
        """Return what the trainer has printed of a line, and what the engine may have."""
        cut = _BEHIND.search(text) if "%|" in text else None
        at = 0 if cut is None else cut.end()
        return (text[:at], text[at:]) if self.goes_on or _TAG.search(text[at : at + 400]) else (text, "")

    def feed(self, number: int, text: str) -> tuple[list[Record], bool]:
        """Return the records of a line, and whether it is one of the engine's."""
        records, is_own = self._tagged(number, text) if _TAG.search(text[:400]) else self._untagged(number, text)
        self.goes_on = self.parser.goes_on
        for record in records:
            if self.shares_steps:
                break
            self.has_begun = self.has_begun or record.kind == "launch"
            if record.kind in ("step", "timers"):
                record.kind = "metrics" if record.kind == "step" else record.kind
                record.iteration = None
        if self.has_begun and _BEGINS.search(text) is not None:
            self.has_begun = False
            records.append(Record("launch", number, data={}, opens=True))
        return records, is_own

    def _tagged(self, number: int, text: str) -> tuple[list[Record], bool]:
        self.parser.printed.json = None
        records = [record for peeled in peel_line(number, text) for record in self.parser.feed(*peeled)]
        return records, self.parser.goes_on or any(record.kind not in ("launch", "end") for record in records)

    def _untagged(self, number: int, text: str) -> tuple[list[Record], bool]:
        """Read a line of the configuration or of a table; any other line ends them, and is the trainer's."""
        text = strip_prefix(text)[2]
        if self.parser.printed.json is not None:
            is_own = _JSON.match(text) is not None
            return self.parser.printed.json_line(number, text) if is_own else [], is_own
        ended = self.parser.printed.close(number)
        records, is_own = self.parser.comms.feed(number, None, text)
        return ended + records, is_own

    def finish(self) -> list[Record]:
        """Return the open records at the end of the file."""
        return self.parser.finish()
