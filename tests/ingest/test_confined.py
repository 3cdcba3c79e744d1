"""Reading in a child: limits of memory and time, and what their excess looks like outside."""

from __future__ import annotations

import io
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from parlab.formats import read_document
from parlab.formats.documents import rst
from parlab.formats.documents.blocks import Text
from parlab.ingest.confined import Confined, Unreadable, confined
from parlab.ingest.files.confined_rst import WarmChild
from parlab.publishing.images import cleaned
from parlab.traces.chunks import BadTrace
from parlab.traces.imported import read_any

CHILD = "tests.ingest.in_child"
MEMO = b"\x80\x02}r" + struct.pack("<I", 0x7FFF_FFF0 // 16) + b"."
"""A dict, to be remembered at a place for which the unpickler allocates gigabytes."""


def test_plain_values_go_in_and_come_back() -> None:
    child = Confined()
    for value in ({"a": [1, None, "\u2028ü"]}, float("inf"), "x" * 3_000_000):
        assert child.call(f"{CHILD}:echoed", value) == value
    assert list(child.items(f"{CHILD}:counted", 3)) == [0, 1, 2]
    with pytest.raises(Unreadable, match=r"it cannot be read \(KeyError: 'field 7'\)"):
        child.call(f"{CHILD}:damaged")
    assert child.call(f"{CHILD}:echoed", 1) == 1
    child.close()


def test_a_child_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAB_NODE_KEY", "secret")
    assert "secret" not in confined(f"{CHILD}:environment").values()


def test_limits_of_memory_and_time_are_reasons(settings: Any) -> None:
    settings.READ_MEMORY_MIB, settings.READ_SECONDS = 600, 1
    for function, reason in (("greedy", "600 MiB of memory"), ("endless", "more than 1 s"), ("killed", "memory")):
        with pytest.raises(Unreadable, match=reason):
            confined(f"{CHILD}:{function}")


def test_a_child_ends_with_its_last_holder() -> None:
    child = Confined()
    process = child._child
    del child
    assert process.returncode is not None


def test_a_memo_beyond_its_values_is_refused_before_it_is_allocated() -> None:
    before, began = _peak_kib(), time.monotonic()
    with pytest.raises(BadTrace, match="place 134217727 of the memo"):
        read_any(io.BytesIO(MEMO))
    assert _peak_kib() - before < 100_000
    assert time.monotonic() - began < 1


def _peak_kib() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


@pytest.mark.parametrize("data", [b"\x80\x02cos\nsystem\n(S'true'\ntR.", b"\x80\x04(I1\ndt.", pickle.dumps({1, 2})])
def test_operations_that_a_dump_does_not_need_are_refused(data: bytes) -> None:
    with pytest.raises(BadTrace, match="is not plain data"):
        read_any(io.BytesIO(data))


def test_pictures_are_decoded_in_a_child(settings: Any) -> None:
    settings.READ_MEMORY_MIB = 150
    png = io.BytesIO()
    Image.new("L", (7_000, 7_000)).save(png, "PNG")
    with pytest.raises(ValueError, match=r"big.png: reading it needs more than 150 MiB"):
        cleaned(io.BytesIO(png.getvalue()), name="big.png", size=png.tell(), limit=1 << 24)


def substitutions(levels: int) -> str:
    """Return a page of a kilobyte that docutils expands to 2 to the power of `levels` words."""
    nested = [f".. |a{level}| replace:: |a{level + 1}| |a{level + 1}|\n" for level in range(levels)]
    return "".join([*nested, f".. |a{levels}| replace:: words\n\nSteps\n=====\n\nText |a0| end.\n"])


@pytest.mark.slow
def test_a_page_that_docutils_expands_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlab.ingest.files.confined_rst.SECONDS", 3)
    # Tests before this one may have left a child that has more time.
    monkeypatch.setattr(rst.parser, "parse", WarmChild().parse)
    before, began = _peak_kib(), time.monotonic()
    document = read_document(substitutions(30).splitlines(keepends=True), file="x", format="rst")
    assert _peak_kib() - before < 100_000
    assert time.monotonic() - began < 60
    assert [line.reason for line in document.unread.examples] == [
        "docutils could not parse the document: reading it takes more than 3 s; import a smaller part"
    ]
    # The next document has a child of its own.
    page = "Steps\n=====\n\n.. note::\n   text\n\n=== =====\na   b\n=== =====\n1   2.5 s\n=== =====\n"
    assert read_document(page.splitlines(keepends=True), file="x", format="rst").tables


@pytest.mark.slow
def test_a_document_does_not_pay_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlab.ingest.files.confined_rst.SECONDS", 3)
    child = WarmChild()
    with pytest.raises(Unreadable):
        child.parse(substitutions(30))
    child.parse("Steps\n=====\n\ntext\n")
    first = child._child
    assert first
    monkeypatch.setattr(first, "call", lambda *_: (_ for _ in ()).throw(Unreadable("its time is over")))
    assert child.parse("Steps\n=====\n\ntext\n")
    assert child._child is not first


def test_a_child_is_kept_for_several_documents_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlab.ingest.files.confined_rst.DOCUMENTS", 2)
    child, seen = WarmChild(), list[Confined | None]()
    for number in range(3):
        [_, text] = child.parse(f"Steps\n=====\n\n.. note::\n   text {number}\n")
        assert isinstance(text, Text)
        assert text.plain == [f"text {number}"]
        seen.append(child._child)
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]
