"""Step 3 of an import: a reading -> the draft of its runs, with their text and the file's bytes packed. No database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from parlab.ingest.files.packing import Packed, line_offsets, pack
from parlab.ingest.files.reading import Reading
from parlab.ingest.files.workspace import Workspace
from parlab.ingest.readings.results import WHOLE, Result, results_in
from parlab.series.replacing import Rows

# Greater than any line number; it stands for the end of the file.
_END = 2**62


LEARNT = "learnt"
"""The part of a summary that marks numbers of a learnt format, with its name and version."""


class Draft(NamedTuple):
    """All that is to be stored of one file."""

    reading: Reading
    results: list[Result]
    """Each becomes a run."""
    texts: dict[int, Packed]
    """Index of a segment -> its part of the text."""
    raw: Packed
    """The bytes of the file as it was received."""
    series: Mapping[int, Rows] = {}
    """Index of a segment -> its series, packed once the draft is to be stored."""


def draft_of(reading: Reading, workspace: Workspace) -> Draft:
    """Turn a reading into the results that become runs, and compress what is stored with them."""
    results = results_in(reading.document, reading.lines, reading.recordings)
    if reading.learnt:
        results = [result._replace(summary={**result.summary, LEARNT: reading.learnt}) for result in results]
    raw = pack(reading.received.path, 0, reading.received.size, workspace.pieces)
    return Draft(reading, results, _texts(reading, results, raw, workspace), raw)


def _texts(reading: Reading, results: Sequence[Result], raw: Packed, workspace: Workspace) -> dict[int, Packed]:
    """Pack the text of each launch. Lines between two launches of a log belong to the first of them."""
    if reading.received.kind in ("events", "tar"):
        return {}
    is_original = reading.text == reading.received.path
    launches = sorted(
        (result.lines[0], result.lines[1], result.segment)
        for result in results
        if result.segment is not None and result.lines is not None
    )
    if not launches:
        return {WHOLE: raw} if is_original and any(result.segment == WHOLE for result in results) else {}
    first_lines = [first for first, _, _ in launches]
    if reading.is_page:
        ranges = [(first, last + 1) for first, last, _ in launches]
    else:
        ranges = list(zip([1, *first_lines[1:]], [*first_lines[1:], _END], strict=True))
    offsets = line_offsets(reading.text, [line for bounds in ranges for line in bounds])
    texts: dict[int, Packed] = {}
    for (begin, end), (_, _, segment) in zip(ranges, launches, strict=True):
        is_whole = is_original and offsets[begin] == 0 and offsets[end] == reading.received.size
        texts[segment] = raw if is_whole else pack(reading.text, offsets[begin], offsets[end], workspace.pieces)
    return texts
