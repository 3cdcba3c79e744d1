"""TensorBoard event files, written by TensorBoard's own record writer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from parlab.formats import Document
from parlab.formats.files import read_file
from parlab.read import main

Write = Callable[..., Path]


def scalar(tag: str, value: float) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def tensor(tag: str, value: object, plugin: str) -> Summary:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary(value=[Summary.Value(tag=tag, tensor=make_tensor_proto(value), metadata=metadata)])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an event file of (step, summary) pairs."""

    def made(*events: tuple[int, Summary], name: str = "events.out.tfevents.1700000000.node.1.0") -> Path:
        path = tmp_path / name
        with path.open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
            for number, (step, summary) in enumerate(events):
                writer.write(Event(wall_time=1.7e9 + number, step=step, summary=summary).SerializeToString())
        return path

    return made


@pytest.fixture
def megatron(write: Write) -> Path:
    """Twenty steps as Megatron-LM writes them, with copies over samples and a validation."""
    events: list[tuple[int, Summary]] = [(0, tensor("num_layers/text_summary", b"24", "text"))]
    for step in range(1, 21):
        events += [
            (step, scalar("lm-loss-training/lm loss", 10.0 / step)),
            (step * 32, scalar("lm-loss-training/lm loss vs samples", 10.0 / step)),
            (step, scalar("iteration-time/iteration-time", 2.0 if step == 1 else 0.5)),
            (step, scalar("batch-size/batch-size", 32.0)),
        ]
    events.append((20, scalar("lm loss validation/lm loss validation", 0.75)))
    return write(*events)


def test_scalars_of_a_step_become_one_step_and_arguments_a_launch(megatron: Path) -> None:
    document = read_file(megatron)
    (segment,) = document.segments
    assert document.format == "tensorboard"
    assert (segment.records, document.unread.lines) == (20, 0)
    assert segment.launch.num_layers == 24
    assert segment.step_time_s is not None
    assert segment.step_time_s.mean_without_first == 0.5
    assert segment.samples_per_s == 64.0
    assert segment.loss is not None
    assert (segment.loss.name, segment.loss.last) == ("lm_loss", 0.5)
    assert [(v.iteration, v.values) for v in segment.validation] == [(20, {"lm_loss_validation": 0.75})]


def test_arguments_of_the_trainer_come_as_one_json_text(write: Write) -> None:
    path = write(
        (0, tensor("args/text_summary", b'{"per_device_train_batch_size": 8, "bf16": true}', "text")),
        (10, scalar("train/loss", 2.5)),
        (10, scalar("eval/loss", 2.25)),
        (10, scalar("train/train_samples_per_second", 12.5)),
    )
    (segment,) = read_file(path).segments
    assert (segment.launch.micro_batch_size, segment.launch.precision) == (8, "bf16")
    assert segment.samples_per_s == 12.5
    assert segment.validation[0].values == {"loss": 2.25}


def test_a_scalar_stored_as_tensor_counts_and_an_array_does_not(write: Write) -> None:
    path = write((1, tensor("loss", 1.5, "scalars")), (1, tensor("weights", [1.0, 2.0], "histograms")))
    (segment,) = read_file(path).segments
    assert segment.first is not None
    assert segment.first.values == {"loss": 1.5}


def test_what_is_plotted_over_samples_has_no_iteration(write: Write) -> None:
    path = write(*((step * 64, scalar("Train/Samples/train_loss", 3.0)) for step in (1, 2, 3)))
    (segment,) = read_file(path).segments
    assert segment.records == 3
    assert segment.last is not None
    assert segment.last.iteration is None
    assert segment.last.values == {"consumed_samples": 192.0, "train_loss": 3.0}


def test_a_value_that_is_not_finite_is_counted_and_no_measurement(write: Write) -> None:
    document = read_file(write((1, scalar("loss", float("nan"))), (2, scalar("loss", 1.0))))
    assert document.unread.examples[0].reason == "not a finite number"
    assert document.segments[0].records == 1


def test_a_file_cut_by_a_power_cut_keeps_what_was_written(megatron: Path) -> None:
    whole = megatron.read_bytes()
    megatron.write_bytes(whole[: len(whole) // 2 + 3])
    document = read_file(megatron)
    assert 5 < document.segments[0].records < 20
    assert "damaged or cut off" in document.unread.examples[0].reason


def test_damage_anywhere_never_raises_and_is_said(megatron: Path) -> None:
    whole = megatron.read_bytes()
    rng = random.Random(7)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        megatron.write_bytes(data)
        document: Document = read_file(megatron)
        assert document.unread.lines, "every byte is covered by a checksum"


def test_a_whole_number_in_a_tensor_counts(write: Write) -> None:
    path = write((1, tensor("tokens", 300, "scalars")), (1, tensor("offset", -2, "scalars")))
    (segment,) = read_file(path).segments
    assert segment.first is not None
    assert segment.first.values == {"tokens": 300.0, "offset": -2.0}


def test_an_event_that_cannot_be_decoded_is_counted_and_the_next_is_read(write: Write) -> None:
    path = write((1, scalar("loss", 2.0)))
    with path.open("ab") as file:
        RecordWriter(file).write(b"\x2a\x03\x0a\x01\xff")
        RecordWriter(file).write(Event(wall_time=1.7e9, step=2, summary=scalar("loss", 1.0)).SerializeToString())
    document = read_file(path)
    assert document.unread.examples[0].reason == "an event that cannot be decoded"
    assert document.segments[0].records == 2


def test_the_command_reads_event_files(megatron: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([str(megatron), "--records"]) == 0
    assert capfdbinary.readouterr().out.count(b'"kind":"step"') == 20


def test_another_file_asked_for_as_event_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "text.log"
    path.write_text("no event file at all, but long enough to hold a header of one\n")
    document = read_file(path, "tensorboard")
    assert document.segments == []
    assert "damaged or cut off" in document.unread.examples[0].reason
