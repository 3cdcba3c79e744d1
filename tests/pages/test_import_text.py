"""The import page marks each number of the text, offers what to take of a contradiction, and keeps the choice."""

from __future__ import annotations

import html
import io
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.ingest.files.imports import source_reingest
from parlab.ingest.readings.marked_text import MARKED_CHARACTERS, MarkedText, marked_text
from parlab.lab.models import Finding, Run, Source

from .test_imports import EVIL

pytestmark = pytest.mark.django_db

CONTRADICTING = """Tokens / micro-batch / rank: 8 x 2048 = 16,384
Tokens / micro-batch: 131,072
Total batch size 524,288 => gradient accumulation steps: 4
step 00100/71680 (0.14%) | loss: 4.512345 | lrm: 1.00 | dt: 1632.10ms | tok/sec: 80,308 | mfu: 49.10
step 00101/71680 (0.14%) | loss: 4.498111 | lrm: 1.00 | dt: 1630.50ms | tok/sec: 80,387 | mfu: 49.15
step 00102/71680 (0.14%) | loss: 4.501020 | lrm: 1.00 | dt: 1631.20ms | tok/sec: 80,353 | mfu: 49.12
"""


@pytest.fixture(autouse=True)
def own_uploads(settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "uploads"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir()


def look(page: Client, log: str, **more: str) -> str:
    return str(page.post("/import/paste/", {"text": log, "form": "paste-form", **more}).content.decode())


def marks(shown: str) -> list[tuple[str, str]]:
    found = re.findall(r'<mark class="m-(\w+)" title="[^"]*"[^>]*>(.*?)</mark>', shown)
    return [(use, html.unescape(text)) for use, text in found]


def take(shown: str, words: str) -> tuple[str, str]:
    """Return name and value of the field that a button of a finding sets."""
    pattern = rf'name="(take:[^"]*)" value="([^"]*)"[^>]*>{re.escape(words)}<'
    [field] = re.findall(pattern, shown)
    return str(field[0]), str(field[1])


def test_each_number_is_marked_in_the_text(page: Client) -> None:
    shown = look(page, CONTRADICTING)
    assert ("read", "loss: 4.501020") in marks(shown)
    assert ("contradiction", "tok/sec: 80,353") in marks(shown)
    assert ("read", "tok/sec: 80,308") in marks(shown)
    assert not Source.objects.exists()


def test_an_average_is_marked_as_one(page: Client) -> None:
    shown = look(page, "step:1/10 train_loss:5.0 train_time:900ms step_avg:450.00ms\n" * 3)
    assert [text for use, text in marks(shown) if use == "average"]


def test_what_a_reader_leaves_is_marked_with_the_reason(page: Client) -> None:
    line = " iteration {}/ 60 | elapsed time per iteration (ms): {} | lm loss: 5.0 |\n"
    shown = look(page, "".join(line.format(n, 500.0) for n in range(1, 5)) + line.format(5, "12.5.3"))
    assert any(use == "unused" for use, _ in marks(shown))


def test_a_taken_number_becomes_the_headline_and_judges_the_finding(page: Client) -> None:
    field, name = take(look(page, CONTRADICTING), "Take 321,412")
    assert name == "expected_tokens_per_s"
    page.post("/import/now/", {"text": CONTRADICTING, field: name})
    [run], [finding] = Run.objects.all(), Finding.objects.all()
    assert run.tokens_per_s == pytest.approx(321_412.46, rel=1e-6)
    assert run.summary["kinds"]["tokens_per_s"] == "derived"
    assert finding.is_acknowledged
    assert "321412 (computed), not 80353" in finding.acknowledged_reason


def test_a_choice_outlives_a_rebuild(page: Client) -> None:
    field, name = take(look(page, CONTRADICTING), "Take 321,412")
    page.post("/import/now/", {"text": CONTRADICTING, field: name})
    source_reingest(source=Source.objects.get())
    assert Run.objects.get().tokens_per_s == pytest.approx(321_412.46, rel=1e-6)


def test_the_stated_number_can_be_taken_too(page: Client) -> None:
    field, name = take(look(page, CONTRADICTING), "Take 80,353")
    page.post("/import/now/", {"text": CONTRADICTING, field: name})
    assert Run.objects.get().tokens_per_s == pytest.approx(80_353)
    assert Finding.objects.get().is_acknowledged


def test_without_a_choice_nothing_is_judged(page: Client) -> None:
    page.post("/import/now/", {"text": CONTRADICTING, "take:nonsense": "expected_tokens_per_s", "take:": "seen"})
    assert not Finding.objects.get().is_acknowledged
    assert Run.objects.get().tokens_per_s == pytest.approx(80_367, rel=1e-3)


def test_a_choice_stays_while_the_text_changes(page: Client) -> None:
    field, name = take(look(page, CONTRADICTING), "Take 321,412")
    again = look(page, CONTRADICTING + "done\n", **{field: name})
    assert f'name="{field}" value="{name}" form="paste-form" checked' in again


def test_hostile_texts_are_escaped_and_cut(page: Client) -> None:
    line = " iteration 1/ 60 | elapsed time per iteration (ms): 5.0 | lm loss: 5.0 |"
    shown = look(page, f"{line}{EVIL}\n{line}{'x' * 100_000}\n")
    assert EVIL not in shown
    assert len(shown) < 40_000


def marked(text: str, format: str = "megatron") -> MarkedText:
    return marked_text(text, name="a.log", format=format, lines=text.count("\n"))


def test_a_long_text_shows_few_lines_and_says_how_many_are_folded() -> None:
    line = " iteration {}/ 9000 | elapsed time per iteration (ms): 5.0 | lm loss: 5.0 |\n"
    text = "begin\n" + "".join(line.format(n) for n in range(1, 3_000)) + "end\n"
    shown = marked(text)
    assert len(shown.lines) < 20
    assert sum(line.folded for line in shown.lines) + len(shown.lines) + shown.left_out == text.count("\n")


def test_only_the_beginning_of_a_large_text_is_marked() -> None:
    text = " iteration 1/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 5.0 |\n" * 400_000
    began = time.process_time()
    shown = marked(text)
    assert time.process_time() - began < 5
    assert not shown.is_whole
    assert shown.spans[-1].line <= MARKED_CHARACTERS / 60
    assert shown.left_out > 390_000


@pytest.mark.parametrize("text", ["", "\n", "\0\0\0", "=" * 300_000, "\ud800", "1 " * 200_000])
def test_no_text_is_an_error(text: str) -> None:
    assert marked(text, "pairs") is not None


def test_the_preview_of_an_upload_offers_the_same_choice(page: Client, admin: User) -> None:
    file = SimpleUploadedFile("nano.log", CONTRADICTING.encode())
    preview = page.post("/import/", {"files": file}, follow=True)
    shown = preview.content.decode()
    assert ("contradiction", "tok/sec: 80,353") in marks(shown)
    field, name = take(shown, "Take 321,412")
    page.post(preview.request["PATH_INFO"], {field: name})
    assert Run.objects.get().tokens_per_s == pytest.approx(321_412.46, rel=1e-6)


def packed(**files: str) -> SimpleUploadedFile:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.log", text)
    return SimpleUploadedFile("runs.zip", stream.getvalue())


def test_each_file_of_an_archive_is_shown_with_its_marks(page: Client, admin: User) -> None:
    other = "".join(f"step {n} | loss: 2.{n} | step_time: 0.5{n} s\n" for n in (1, 2, 3))
    first = page.post("/import/", {"files": packed(nano=CONTRADICTING, plain=other)}, follow=True)
    path, shown = first.request["PATH_INFO"], first.content.decode()
    assert ("contradiction", "tok/sec: 80,353") in marks(shown)
    assert re.findall(r'name="show" value="([\d-]+)" title="([^"]*)"', shown) == [
        ("0-0", "nano.log"), ("0-1", "plain.log"),
    ]  # fmt: skip
    field, name = take(shown, "Take 321,412")
    second = page.post(path, {field: name, "show": "0-1"}, follow=True)
    assert not Run.objects.exists()
    assert ("read", "step_time: 0.53 s") in marks(second.content.decode())
    assert "tok/sec: 80,353" not in second.content.decode()
    # What was chosen for the other file is kept.
    page.post(path)
    assert sorted(run.tokens_per_s or 0 for run in Run.objects.all()) == pytest.approx([0, 321_412.46], rel=1e-6)


@pytest.mark.parametrize("show", ["7-7", "0-9", "x", "-1-0", "0-1-2"])
def test_a_file_that_an_upload_lacks_shows_the_first_one(page: Client, admin: User, show: str) -> None:
    first = page.post("/import/", {"files": packed(nano=CONTRADICTING)}, follow=True)
    shown = page.get(first.request["PATH_INFO"], {"show": show}).content.decode()
    assert ("contradiction", "tok/sec: 80,353") in marks(shown)


def test_a_figure_of_an_imported_run_leads_to_its_place_in_the_text(page: Client) -> None:
    page.post("/import/now/", {"text": CONTRADICTING})
    run = Run.objects.get()
    shown = page.get(run.get_absolute_url()).content.decode()
    [link] = re.findall(r'href="([^"]*figure=tokens_per_s#text)"', shown)
    source = page.get(html.unescape(link)).content.decode()
    assert ("contradiction", "tok/sec: 80,353") in marks(source)
    assert 'data-name="tokens_per_s"' in source
    assert "take:" not in source


def test_the_text_of_a_later_run_begins_at_its_lines(page: Client) -> None:
    line = " iteration {}/ 9 | elapsed time per iteration (ms): 5.0 | global batch size: {} | lm loss: 5.0 |\n"
    launches = "".join(f"torchrun train.py --global-batch-size {size}\n" + line.format(1, size) + line.format(2, size)
                       for size in (8, 16))  # fmt: skip
    page.post("/import/now/", {"text": launches})
    first, last = Run.objects.order_by("number")
    shown = page.get(f"{first.experiment.get_absolute_url()}sources/{first.source_id}/?run={last.number}")
    numbers = re.findall(r'id="line-(\d+)"', shown.content.decode())
    assert numbers[0] == str(last.first_line)


UNFOLLOWED = """ iteration 10/ 40 | elapsed time per iteration (ms): 900.0 | global batch size: 64 | lm loss: 5.0 |
Step Time : 0.80s GPU utilization: 200.0TFLOP/s/GPU
 iteration 20/ 40 | elapsed time per iteration (ms): 800.4 | global batch size: 64 | lm loss: 4.0 |
Step Time : 1.60s GPU utilization: 100.0TFLOP/s/GPU
"""


def test_a_rate_that_no_step_follows_is_no_step_of_the_preview_or_the_run(page: Client) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", look(page, UNFOLLOWED)).split())
    assert "Step time 800.4 ms line 3" in text
    assert "Compute per GPU 200 TFLOP/s from 2 lines" in text
    page.post("/import/now/", {"text": UNFOLLOWED})
    run = Run.objects.get()
    assert run.step_time_s == pytest.approx(0.8004)
    assert run.summary["tflops_per_gpu"] == pytest.approx(200)


OF_A_GPU = """[titan] 2026-01-05 10:00:00,250 - root - INFO - step:  1  loss: 12.1  memory:  9.5GiB(65.0%)  tps: 7,250
[titan] 2026-01-05 10:00:01,350 - root - INFO - step:  2  loss: 11.5  memory:  9.5GiB(65.0%)  tps: 7,350
[titan] 2026-01-05 10:00:02,450 - root - INFO - step:  3  loss: 10.9  memory:  9.5GiB(65.0%)  tps: 7,300
"""


def test_a_rate_of_one_gpu_and_a_time_between_stamps_are_headlines(page: Client) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", look(page, OF_A_GPU)).split())
    assert "Tokens per GPU 7,300 tokens/s from 3 lines" in text
    assert "Step time 1.10 s derived" in text
    page.post("/import/now/", {"text": OF_A_GPU})
    run = Run.objects.get()
    text = " ".join(re.sub(r"<[^>]*>", " ", page.get(run.get_absolute_url()).content.decode()).split())
    assert "Throughput 7,300 tokens/s per GPU" in text
    assert "Step time 1.10 s derived" in text


BANDWIDTHS = """#   size     count    type   redop    root    time   algbw   busbw #wrong    time   algbw   busbw #wrong
#    (B)  (elements)                          (us)  (GB/s)  (GB/s)           (us)  (GB/s)  (GB/s)
   65536     16384   float     sum      -1   32.00    2.05    3.58      0   31.00    2.11    3.70      0
  131072     32768   float     sum      -1   40.00    3.28    5.73      0   41.00    3.20    5.59      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 4.65
"""


def test_an_imported_table_of_bandwidths_is_a_figure_of_its_run_and_speeds_come_first(page: Client) -> None:
    page.post("/import/now/", {"text": BANDWIDTHS})
    run = Run.objects.get()
    shown = page.get(run.get_absolute_url()).content.decode()
    assert "No curves" not in shown
    assert shown.index("Avg busbw") < shown.index("Out of bounds values")
    figure = page.get(f"{run.get_absolute_url()}figures/bandwidth.json").json()["figure"]
    assert [round(value, 2) for value in figure["data"][0]["y"]] == [3.58, 5.73]
    assert "dtick" not in figure["layout"]["yaxis"]


def test_numbers_that_no_curve_shows_are_listed(page: Client) -> None:
    page.post("/import/now/", {"text": OF_A_GPU.splitlines()[0]})
    text = " ".join(re.sub(r"<[^>]*>", " ", page.get(Run.objects.get().get_absolute_url()).content.decode()).split())
    assert "Single values Loss 12.1" in text
    assert "Token throughput per GPU 7,250 tokens/s" in text
