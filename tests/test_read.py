"""`python -m parlab.formats` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from parlab.formats.schema import Document
from parlab.read import main
from tests.formats.golden import HERE
from tests.patience import PATIENCE_S

ROOT = HERE.parents[1]
CASE = HERE / "megatron" / "two_launches.log"
# Reads a file and prints the most memory that the process held, in KiB.
PEAK = """
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from parlab.formats.files import read_file
document = read_file(Path(sys.argv[1]), sys.argv[2])
print(document.unread.lines, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    texts = list(map(str, arguments))
    written, errors = BytesIO(), StringIO()
    output = TextIOWrapper(written, write_through=True)
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(texts)
    return subprocess.CompletedProcess(texts, code, written.getvalue().decode(), errors.getvalue())


def test_each_file_gives_one_json_object_of_the_published_shape(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to read\n")
    command = [sys.executable, "-m", "parlab.formats", str(CASE), str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    first, second = (Document.model_validate_json(line) for line in done.stdout.splitlines())
    assert first.format == "megatron"
    assert len(first.segments) == 2
    assert second.format == "unknown"
    assert second.unread.lines == 1


def test_without_json_a_person_gets_a_summary() -> None:
    done = call(CASE)
    assert "megatron, 33 lines" in done.stdout
    assert "median 0.52 s" in done.stdout
    assert "crashed" in done.stdout


def test_records_are_printed_one_by_one() -> None:
    done = call(CASE, "--records")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["iteration"] for step in steps] == [10, 20, 30, 21, 40]
    assert steps[0]["values"]["step_time_s"] == 0.9
    assert steps[0]["printed"]["elapsed time per iteration (ms)"] == ["900.0", "ms"]


def test_a_named_format_overrides_what_the_content_looks_like() -> None:
    done = call(CASE, "--json", "--format", "deepspeed")
    assert json.loads(done.stdout)["format"] == "deepspeed"


@pytest.mark.parametrize("name", ["missing.log", "empty"])
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = call(tmp_path / name)
    assert done.returncode == 2
    assert name in done.stderr


def test_a_results_directory_of_the_tuner_is_one_document(tmp_path: Path) -> None:
    plan = {"name": "z1_gas2_tmbspg4", "ds_config": {"zero_optimization": {"stage": 1}}, "num_gpus": 8, "num_nodes": 2}
    done_exp = tmp_path / "autotuning_results" / "z1_gas2_tmbspg4"
    failed = tmp_path / "autotuning_results" / "z3_gas1_tmbspg8"
    done_exp.mkdir(parents=True)
    failed.mkdir()
    (done_exp / "exp.json").write_text(json.dumps(plan))
    (done_exp / "metrics.json").write_text('{"latency": 2000000.0, "throughput": 0.064, "FLOPS_per_gpu": 50000000.0}')
    (failed / "exp.json").write_text('{"name": "z3_gas1_tmbspg8", "num_gpus": 8, "num_nodes": 2}')
    (failed / "stderr.log").write_text("Traceback (most recent call last):\nRuntimeError: CUDA out of memory.\n")
    document = Document.model_validate_json(call(tmp_path, "--json").stdout)
    first, second = document.segments
    assert first.section == "z1_gas2_tmbspg4"
    assert (first.launch.world_size, first.launch.micro_batch_size, first.launch.zero_stage) == (16, 4, 1)
    assert first.step_time_s is not None
    assert first.step_time_s.median == 2.0
    assert first.samples_per_s == pytest.approx(64.0), "printed a thousand times too low, as DeepSpeed 0.7 does"
    assert second.end.state == "crashed"
    assert "CUDA out of memory" in (second.end.reason or "")


def test_utf_16_as_some_shells_write_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(CASE.read_text().encode("utf-16"))
    assert json.loads(call(path, "--json").stdout)["format"] == "megatron"


@pytest.mark.parametrize(
    "format", ["megatron", *(pytest.param(name, marks=pytest.mark.slow) for name in ("markdown", "rst", "deepspeed"))]
)
def test_a_line_of_50_mb_costs_bounded_memory(tmp_path: Path, format: str) -> None:
    path = tmp_path / "long.log"
    with path.open("w") as stream:
        stream.write(" iteration       10/     100 |")
        for _ in range(50):
            stream.write(" lm loss: 1.0 |" * (1_000_000 // 14))
        stream.write("\n")
    (_, without), (unread, peak) = peak_kib(CASE, format), peak_kib(path, format)
    assert unread >= 1, "the cut line is reported"
    assert peak - without < 100 * 1024


def peak_kib(path: Path, format: str) -> tuple[int, int]:
    """Read a file in a process of its own; returns the lines that it could not read, and the most memory it held."""
    command = [sys.executable, "-c", PEAK, str(path), format]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    unread, peak = map(int, done.stdout.split())
    return unread, peak


def test_the_published_schema_is_that_of_the_output() -> None:
    published = json.loads((ROOT / "docs" / "use" / "formats.schema.json").read_text())
    assert published == Document.model_json_schema(), "run python -m tests.formats.publish_schema"
