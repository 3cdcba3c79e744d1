"""reStructuredText in a child process: docutils takes exponential time for a page of nested substitutions."""

from __future__ import annotations

import threading

from parlab.formats.documents import rst
from parlab.formats.documents.blocks import Block
from parlab.ingest.confined import Confined, Unreadable

SECONDS = 30
"""Time of a child: docutils parses the largest document in a few seconds."""
DOCUMENTS = 20
"""Documents for which a child is kept: starting one takes longer than parsing most of them."""


class WarmChild:
    """A child that parses one document after the other, and is replaced when it has failed or parsed enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Confined | None = None
        self._count = 0

    def parse(self, text: str) -> list[Block]:
        """Return the blocks of a document. Raises Unreadable."""
        with self._lock:
            if self._child is None or self._count >= DOCUMENTS:
                self._child, self._count = Confined(SECONDS), 0
            self._count += 1
            try:
                return rst.blocks_of(self._child.call("parlab.formats.documents.rst:plain_blocks", text))
            except Unreadable:
                self._child = None
                if self._count == 1:
                    raise
        # The documents before it may have taken the time of that child.
        return self.parse(text)


def parse_in_child() -> None:
    """Let this process parse no document with docutils itself."""
    rst.parser.parse = WarmChild().parse
