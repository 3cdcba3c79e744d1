"""What scripts log besides numbers of a step, and what they log by mistake."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from parlab.client import media, mending
from parlab.client.definitions import Definition, Definitions
from parlab.lab.models import Run
from parlab.series import store
from parlab.tracking.artifacts import object_read
from tests.client.conftest import Script, ended

RICH = """
import parlab, pathlib
pathlib.Path("folder/deep").mkdir(parents=True)
pathlib.Path("folder/deep/notes.txt").write_text("hello")
with parlab.init("Rich", {"model": {"layers": 2}}, tags=["a", "b"], telemetry=False) as run:
    run.define_metric("val/*", step_metric="epoch", summary="min")
    for step in range(4):
        run.log({"train": {"loss": 4.0 - step, "deep": {"x": 1}}}, step=10 * step)
        run.log({"epoch": step, "val/loss": [3.0, 1.0, 2.0, 5.0][step]}, step=10 * step)
    run.log_artifact("folder")
    run.log_artifact(b"bytes", "raw/data.bin")
    run.log_image("sample", [[0, 255], [128, 0]], step=3)
    run.log_table("answers", [{"q": "x", "a": 1}])
    run.log_histogram("weights", [0.0, 0.5, 1.0, float("nan")])
    run.summary["best"] = 0.5
    run.summary.update({"verdict": "good"})
"""
# Everything here is a mistake; the script has to go on.
MISTAKES = """
import parlab
class Evil:
    def __str__(self): raise RuntimeError("no")
    __repr__ = __str__
    def item(self): raise KeyError("no")
run = parlab.init(Evil(), Evil(), name=5, tags=7, rank="x", run_id="a b/c\\u00e9")
for values in (None, [1], 5, "text", {"a": 10**400}, {"a": None}, {"a": [1]}, {"a": Evil()}, {Evil(): 1}, {"a": {}}):
    run.log(values)
run.log({"a": 1.5})
run.log({"a": 10**400})
run.log({"huge": 10**5000, "inside": [Evil()], "beside": 3.0})
run.log({"a": 1}, step="x")
run.log({"a": 1}, step=None)
for config in (None, 5, [1], Evil(), {"k": Evil()}, "\\ud800"):
    run.update_config(config)
for tags in (None, 5, ["a"], Evil(), {"k": Evil()}, "a"):
    run.set_tags(tags)
for text in (None, 5, b"x", "\\ud800", Evil()):
    run.print(text)
for value in (None, 5, "missing", Evil(), [1], [[]], [[None]]):
    run.log_artifact(value)
    run.log_image(value, value)
    run.log_table(value, value)
    run.log_histogram(value, value)
    run.summary[value] = value
    run.summary.update(value)
    run.define_metric(value, value, value)
run.log({"a": 2.5}, step=100)
run.finish(reason=5, trace=5, exit_code="x")
run.log({"a": 1})
print("the end")
"""


@pytest.mark.django_db(transaction=True)
def test_files_pictures_tables_and_values_of_a_run_arrive(
    environ: dict[str, str], start: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    monkeypatch.chdir(tmp_path)
    ended(start(RICH, environ))
    run = Run.objects.get()
    stored = {artifact.path: object_read(artifact.sha256) for artifact in run.tracked.artifacts.all()}
    assert stored["folder/deep/notes.txt"] == b"hello"
    assert stored["raw/data.bin"] == b"bytes"
    assert stored["images/sample/3.png"].startswith(b"\x89PNG")
    assert stored["tables/answers/30.csv"] == b"q,a\r\nx,1\r\n"
    assert json.loads(stored["histograms/weights/30.json"])["not_finite"] == 1
    attempt = run.current_attempt().pk
    assert store.read(attempt, "train.loss", rank=0).steps.tolist() == [0, 10, 20, 30]
    assert store.read(attempt, "train.deep.x", rank=0).values.tolist() == [1] * 4
    assert store.read(attempt, "val/loss", rank=0).steps.tolist() == [0, 1, 2, 3]
    assert store.read(attempt, "val/loss.min", rank=0).values.tolist() == [3.0, 1.0, 1.0, 1.0]
    assert run.tracked.metrics.get(key="best").value == 0.5
    assert dict(run.tracked.tags.values_list("key", "value")) == {"a": "", "b": "", "verdict": "good"}
    assert run.tracked.parameters.get(key="model.layers").value == "2"


@pytest.mark.django_db(transaction=True)
def test_no_method_raises_and_what_is_right_arrives(environ: dict[str, str], start: Script) -> None:
    process = start(MISTAKES, environ)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "the end\n"), errors
    run = Run.objects.get()
    assert store.read(run.current_attempt().pk, "a", rank=0).values.tolist()[:1] == [1.5]
    assert store.read(run.current_attempt().pk, "a", rank=0).values.tolist()[-1] == 2.5
    assert store.read(run.current_attempt().pk, "beside", rank=0).values.tolist() == [3.0]
    assert run.tracked.uuid.startswith("a-b-c-")


def test_an_axis_that_is_no_whole_number_leaves_its_metrics_at_their_step() -> None:
    definitions = Definitions()
    definitions.add(Definition("val", "epoch", ""))
    assert dict(definitions.parts(7, {"epoch": 2, "val": 1.0})) == {7: {"epoch": 2}, 2: {"val": 1.0}}
    assert dict(definitions.parts(8, {"val": 0.5})) == {2: {"val": 0.5}}
    halfway = {"epoch": 2.5, "val": 0.25}
    assert definitions.broken_axes(halfway) == ["epoch"]
    assert dict(definitions.parts(9, halfway)) == {9: halfway}


def test_names_and_ids_are_mended_alike_on_all_ranks() -> None:
    assert mending.name("experiment", "a\x00b" + "x" * 600, "Default").startswith("a bxxx")
    assert len(mending.name("experiment", "x" * 600, "Default")) == 500
    assert mending.name("experiment", "", "Default") == mending.name("experiment", None, "Default") == "Default"
    assert mending.run_id("job:1.a_b-c") == "job:1.a_b-c"
    first, second = mending.run_id("x" * 65), mending.run_id("x" * 66)
    assert first is not None
    assert second is not None
    assert (len(first), first == mending.run_id("x" * 65), first == second) == (64, True, False)
    assert mending.run_id("///") == mending.run_id("///")
    assert mending.tags(("a", 5)) == {"a": "", "5": ""}


def test_a_picture_of_an_array_is_a_png_with_its_pixels() -> None:
    content, suffix = media.picture([[[1.0, 0.0, 0.5], [0.0, 1.0, 2.0]]])
    assert suffix == ".png"
    at = content.index(b"IHDR")
    assert struct.unpack(">IIBB", content[at + 4 : at + 14]) == (2, 1, 8, 2)
    at = content.index(b"IDAT")
    length = struct.unpack(">I", content[at - 4 : at])[0]
    assert zlib.decompress(content[at + 4 : at + 4 + length]) == bytes([0, 255, 0, 128, 0, 255, 255])
    channels_first = [[[0] * 5] * 5] * 3
    assert struct.unpack(">II", media.picture(channels_first)[0][16:24]) == (5, 5)


def test_a_histogram_counts_every_number() -> None:
    counted = json.loads(media.histogram([[0.0, 1.0], [2.0, 4.0]], bins=4))
    assert (counted["counts"], counted["edges"]) == ([1, 1, 1, 1], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert json.loads(media.histogram(([1, 2], [0, 1, 2])))["counts"] == [1.0, 2.0]


def test_paths_of_files_stay_within_the_run_and_the_file_system(tmp_path: Path) -> None:
    assert media.clean_path("../../etc//./passwd") == "etc/passwd"
    files = media.Files(tmp_path)
    files.add(media.clean_path("ü" * 300 + "/x.txt"), b"1")
    files.add("b", b"2")
    assert [path[-5:] for path, _ in files.waiting()] == ["x.txt", "b"]
