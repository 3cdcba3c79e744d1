"""Damage done to texts: what disks, terminals, editors and people do to a log."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

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


_TAGS = ("train/loss", "eval/loss", "iteration-time/iteration-time", "Train/Samples/train_loss", "args/text_summary")
_WEIRD = (float("nan"), float("inf"), -1e38, 1e-45, 0.0, -1.0)


def _summary(rng: random.Random, text: str) -> Summary.Value:
    """Return a scalar, a text or an array under a tag of a trainer or a piece of the text."""
    begin = rng.randrange(len(text) + 1)
    piece = text[begin : begin + rng.choice([5, 40, 600])].encode("utf-8", "replace").decode()
    tag = rng.choice([*_TAGS, piece, f"{piece}/text_summary"])
    number = rng.choice([*_WEIRD, rng.random(), float(rng.randrange(10**6))])
    if rng.random() < 0.5:
        return Summary.Value(tag=tag, simple_value=number)
    content: object = rng.choice([piece.encode(), number, [number, 2.0], [piece.encode(), b"2"]])
    plugin = SummaryMetadata.PluginData(plugin_name=rng.choice(["text", "scalars", "histograms", ""]))
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary.Value(tag=tag, tensor=make_tensor_proto(content), metadata=metadata)


def damaged_event_file(rng: random.Random, text: str) -> bytes:
    """Return an event file made of a text: with sound checksums around odd contents, or with damaged bytes."""
    file = io.BytesIO()
    writer = RecordWriter(file)
    writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
    for number in range(rng.randrange(1, 20)):
        step = rng.choice([number, number, number, -1, 2**62])
        when = rng.choice([1.7e9 + number, 1.7e9 + number, 1e300, -1.0, float("nan")])
        summary = Summary(value=[_summary(rng, text) for _ in range(rng.randrange(3))])
        content = bytearray(Event(wall_time=when, step=step, summary=summary).SerializeToString())
        if rng.random() < 0.2:
            content[rng.randrange(len(content))] = rng.randrange(256)
        writer.write(bytes(content))
    data = bytearray(file.getvalue())
    head = 60
    if rng.random() < 0.3:
        data[rng.randrange(head, len(data) + 1) :] = b""
    for _ in range(rng.choice([0, 0, 3]) if len(data) > head else 0):
        data[rng.randrange(head, len(data))] = rng.randrange(256)
    return bytes(data)
