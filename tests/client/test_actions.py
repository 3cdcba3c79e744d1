"""The commands of `parlab` that act on the server, with their exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from torch.utils.tensorboard import SummaryWriter

from parlab.client.command import actions, tables
from parlab.client.command.commands import main
from parlab.lab.models import Attempt, Experiment, Run
from parlab.lab.services.experiments import experiment_create
from parlab.planner import cluster, predict
from parlab.planner.requests.launches import described_launch
from parlab.planner.requests.request import PlanRequest
from parlab.series import log, store
from parlab.series.columns import Columns
from runners.config import check, complete
from tests.client.test_commands import HEAD, iterations

pytestmark = pytest.mark.django_db(transaction=True)

STORES = Path(__file__).parents[1] / "tracking" / "stores"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    live_server: LiveServer,
    token: str,
    client_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Run a command; returns exit code, output and errors."""
    for name, value in (("URL", live_server.url), ("TOKEN", token), ("HOME", str(client_home))):
        monkeypatch.setenv(f"PARLAB_{name}", value)
    monkeypatch.setenv("NO_PROXY", "*")

    def called(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = int(error.code or 0)
        return (code, *capsys.readouterr())

    return called


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    attempt = make_attempt()
    steps = np.arange(5)
    times = np.array(steps + 0.5, np.float64)
    store.append(attempt.pk, {("a/b", 0): Columns(steps, times, np.array(steps * 2.0, np.float64))})
    store.append(attempt.pk, {("a b", 0): Columns(steps, times, np.array(steps * 3.0, np.float64))})
    log.append_log(attempt.pk, b"hello\n")
    Attempt.objects.update(last_step=2)
    return attempt


def test_a_configuration_is_saved_launched_and_its_runs_are_cancelled_and_relaunched(
    call: Call, admin: object, tmp_path: Path
) -> None:
    experiment_create(name="Micro batches", owner=admin)  # type: ignore[arg-type]
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"data": {"train": {"global_batch_size": 8}}, "sweep": {"train.micro_batch_size": [1, 2]}})
    )
    code, output, _ = call("launch", "micro-batches", "--config", path, "--note", "first")
    assert (code, output.count("queued")) == (0, 2)
    assert call("launch", "micro-batches")[1] == "no point without a run\n"
    assert call("launch", "micro-batches", "--json")[1] == "[]\n"
    assert call("cancel", "micro-batches", 1)[:2] == (0, "run 1 cancelled\n")
    code, _, errors = call("cancel", "micro-batches", 1)
    assert (code, "cancel" in errors) == (1, True)
    assert call("relaunch", "micro-batches", 1)[:2] == (0, "run 1 queued, attempt 2\n")
    assert Experiment.objects.get().configs.get().note == "first"
    path.write_text("{")
    assert "is not JSON" in call("launch", "micro-batches", "--config", path)[2]


def test_watching_shows_progress_until_the_end_and_returns_how_runs_ended(
    call: Call, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    slug = attempt.run.experiment.slug

    def end(_seconds: float) -> None:
        Attempt.objects.update(last_step=4)
        Run.objects.update(state="finished")

    with monkeypatch.context() as patch:
        patch.setattr(actions, "time", SimpleNamespace(sleep=end))
        code, output, _ = call("watch", slug)
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "run 1  running  [##########..........] step 2/4 50%"
    assert lines[-1] == "run 1  finished  [####################] step 4/4 100%"
    assert call("watch", slug)[:2] == (0, "no run is active\n")
    Run.objects.update(state="failed", reason="out of disk")
    assert call("watch", slug, 1)[:2] == (4, "run 1  failed  [####################] step 4/4 100%  out of disk\n")
    assert call("wait", slug, 1)[:2] == (4, "run 1 failed\n")
    assert json.loads(call("watch", slug, 1, "--json")[1])[0]["reason"] == "out of disk"
    code, _, errors = call("watch", slug, 7)
    assert (code, f"`parlab ls {slug}`" in errors) == (1, True)
    Run.objects.update(state="running")
    assert call("wait", slug, 1, "--timeout", 0.1)[0] == 1


def test_comparing_shows_measures_with_ratios_and_settings_that_differ(
    call: Call, make_attempt: Callable[..., Attempt]
) -> None:
    first, second = make_attempt().run, make_attempt().run
    for run, speed, size in ((first, 100.0, 1), (second, 150.0, 2)):
        run.samples_per_s, run.summary = speed, {"loss": {"last": 2.5}}
        run.resolved["train"]["micro_batch_size"] = size
        run.save()
    slug = first.experiment.slug
    rows = {row["name"]: row for row in json.loads(call("compare", f"{slug}:1", 2, "--json")[1])}
    assert rows["samples_per_s"]["values"] == [100.0, 150.0]
    assert rows["samples_per_s"]["ratios"] == [None, 1.5]
    assert rows["train.micro_batch_size"]["values"] == [1, 2]
    assert "train.seed" not in rows
    assert "150 (1.5 x)" in call("compare", f"{slug}:1", f"{slug}:2")[1]
    assert "use for example bert-base:3" in call("compare", "bert")[2]


@pytest.mark.slow
def test_a_plan_takes_pairs_and_files(call: Call, tmp_path: Path, catalogue: None) -> None:
    path = tmp_path / "question.json"
    path.write_text('{"layers": 24, "hidden": 2048, "heads": 16, "tensor_parallel": 1, "pipeline_parallel": 1}')
    code, output, errors = call("plan", "--file", path, "nodes=2")
    assert (code, errors) == (0, "")
    assert "layouts" in output
    assert json.loads(call("plan", "--file", path, "nodes=2", "--json")[1])["layouts"]
    code, output, errors = call("plan", "--file", path, "nodes=1", "sequence=262144")
    assert (code, errors) == (0, "")
    assert "warnings: Sequence length 262,144 is outside the range" in output
    code, _, errors = call("plan", "kv_heads=7", "gpu=H100 SMX", "experts=8", "expert_parallel=3")
    assert code != 0
    for part in ("kv_heads 7", "expert_parallel 3", "did you mean H100 SXM?"):
        assert part in errors
    code, _, errors = call("plan", "layers")
    assert (code, "is not NAME=VALUE" in errors) == (1, True)
    code, _, errors = call("plan", "layers=-1")
    assert (code, "layers" in errors) == (1, True)


QUESTION: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "mlp": "gated", "vocabulary": 128256,
    "sequence": 8192, "global_batch": 128, "tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 4,
    "schedule": "interleaved-1f1b", "chunks": 2, "recompute": "none", "zero": 1, "nodes": 4, "network_gbit_s": 3200,
    "gpu": "H100 SXM",
}  # fmt: skip
ROW: dict[str, Any] = {
    "model": {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "mlp": "gated", "vocab": 128256,
        "seq": 8192,
    },
    "parallel": {
        "tp": 2, "pp": 4, "vp": 2, "schedule": "interleaved", "mbs": 1, "gbs": 128, "recompute": "none", "zero": 1,
        "sequence_parallel": True, "attention": "flash",
    },
    "hardware": {"gpu": "H100-80GB", "count": 32, "node": 8, "inter_node": "3200Gbps"},
}  # fmt: skip


@pytest.mark.slow
def test_one_training_has_the_same_figures_in_every_interface(
    call: Call, page: Client, tmp_path: Path, catalogue: None
) -> None:
    """Page, API, `parlab plan`, both forms of `manage.py plan` and a configuration, overlap left to practice."""
    question, row = tmp_path / "question.json", tmp_path / "row.json"
    question.write_text(json.dumps(QUESTION))
    row.write_text(json.dumps(ROW))
    answers = {
        "API": page.post("/api/plan/", QUESTION, content_type="application/json").json(),
        "parlab plan": json.loads(call("plan", *(f"{k}={v}" for k, v in _typed(QUESTION)), "--json")[1]),
        "manage.py plan --question": json.loads(_managed("--question", str(question))),
    }
    figures = {name: (answer["iteration_s"], answer["memory"]["total_bytes"]) for name, answer in answers.items()}
    shown = page.get("/plan/", QUESTION).context["prediction"]
    figures["page"] = (shown.iteration_s, shown.memory_bytes)
    line = json.loads(_managed("--json", str(row)))
    figures["manage.py plan --json"] = (line["iter_s"], line["memory_gb"] * 2**30)
    job = PlanRequest.model_validate(QUESTION).job()
    config, problems = check(complete(dict(described_launch(job, 8).data)))
    assert config is not None, problems
    described = predict(config, cluster("H100", 32, 8, inter_node_gbit_s=3200))
    figures["configuration"] = (described.iteration_s, described.memory_bytes)
    expected = figures["API"]
    for name, values in figures.items():
        assert values == pytest.approx(expected, rel=1e-3), name


def test_a_misspelt_field_is_refused_with_the_nearest_in_every_interface(
    call: Call, page: Client, tmp_path: Path, catalogue: None
) -> None:
    question, row = tmp_path / "question.json", tmp_path / "row.json"
    question.write_text('{"kv_head": 8}')
    row.write_text(json.dumps(ROW | {"model": ROW["model"] | {"kv_head": 8}}))
    with pytest.raises(CommandError) as refused:
        _managed("--question", str(question))
    _, problems = check({"model": {"num_kv_head": 8}})
    messages = {
        "page": page.get("/plan/", {"kv_head": "8"}).content.decode(),
        "API": page.post("/api/plan/", {"kv_head": 8}, content_type="application/json").content.decode(),
        "parlab plan": call("plan", "kv_head=8")[2],
        "manage.py plan --question": str(refused.value),
        "manage.py plan --json": json.loads(_managed("--json", str(row)))["basis"],
        "configuration": " ".join(problem.message for problem in problems),
    }
    for name, message in messages.items():
        nearest = "model.num_kv_heads" if name == "configuration" else "kv_heads"
        assert f"did you mean {nearest}?" in message, (name, message[:500])


def _typed(fields: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in fields.items()]


def _managed(*arguments: str) -> str:
    out = StringIO()
    call_command("plan", *arguments, stdout=out)
    return out.getvalue()


def test_files_are_previewed_and_imported(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEAD + iterations(1, 20))
    code, output, _ = call("import", "--dry-run", path)
    assert (code, "megatron" in output, Run.objects.count()) == (0, True, 0)
    assert json.loads(call("import", path, "--json")[1])[0]["format"] == "megatron"
    assert Run.objects.count() == 1
    code, _, errors = call("import", tmp_path / "missing.log")
    assert (code, "does not exist" in errors) == (1, True)


@pytest.mark.slow
def test_stores_of_every_tracker_and_directories_of_logs_are_imported(
    call: Call, tmp_path: Path, settings: Any
) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    trackers = {archive.name.split("-")[0]: archive for archive in sorted(STORES.iterdir())}
    assert set(trackers) == {"aim", "mlflow", "trackio", "wandb"}
    for tracker, archive in trackers.items():
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path / tracker, filter="data")
    for name in ("first", "second"):
        writer = SummaryWriter(str(tmp_path / "tensorboard" / name))
        writer.add_scalar("train/loss", 1.0, 1)
        writer.close()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.log").write_text(HEAD + iterations(1, 20))
    directories = [tmp_path / name for name in (*trackers, "tensorboard", "logs")]
    code, output, errors = call("import", *directories)
    assert (code, errors) == (0, "")
    for form in ("aim store", "mlflow store", "trackio store", "wandb store", "tensorboard store", "megatron"):
        assert form in output
    numbers = Run.objects.count()
    assert numbers == 2 + 1 + 1 + 2 + 2 + 1
    assert call("import", *directories)[0] == 0
    assert Run.objects.count() == numbers


@pytest.mark.parametrize("form", ["csv", "arrow"])
def test_an_export_holds_runs_logs_and_every_series(call: Call, attempt: Attempt, tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"
    code, output, _ = call("export", attempt.run.experiment.slug, "--output", target, "--format", form, "--artifacts")
    assert (code, output) == (0, f"1 runs in {target}\n")
    assert (target / "run-1" / "log.txt").read_bytes() == b"hello\n"
    assert json.loads((target / "run-1" / "run.json").read_text())["number"] == 1
    assert (target / "runs.csv").read_text().splitlines()[0].startswith("number,")
    files = sorted((target / "run-1" / "series").iterdir())
    assert len(files) == 2  # names that differ only in letters that files may not have
    if form == "arrow":
        assert sorted(polars.read_ipc_stream(file)["value"][4] for file in files) == [8.0, 12.0]
    else:
        assert {file.read_text().splitlines()[-1] for file in files} == {"0,4,4.5,8.0", "0,4,4.5,12.0"}


@pytest.mark.parametrize("arguments", [["launch"], ["compare"], ["completion", "tcsh"], ["watch", "x", "one"], ["x"]])
def test_wrong_usage_exits_with_2(call: Call, arguments: list[str]) -> None:
    assert call(*arguments)[0] == 2


def test_the_exit_code_tells_refused_from_unreachable(call: Call) -> None:
    assert call("launch", "missing")[0] == 1
    assert call("--url", "http://127.0.0.1:9", "watch", "x")[0] == 3


def test_a_terminal_shows_tables_of_rich_and_progress_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.print_table(("number", "state"), [{"number": 1, "state": "finished"}, {"number": 2, "state": "[bold]"}])
    progress = tables.Progress()
    progress.show({1: "run 1  queued"})
    progress.show({1: "run 1  running"})
    output = capsys.readouterr().out
    assert "┃" in output
    assert "[bold]" in output
    assert output.endswith("\x1b[1A\x1b[2Krun 1  running\n")


def test_the_progress_of_a_run_without_planned_steps_is_its_step() -> None:
    run = {"number": 3, "state": "running", "last_step": 7, "planned_steps": None, "tokens_per_s": 1234.5678}
    assert actions.progress_line(run) == "run 3  running  step 7  1235 tokens/s"


@pytest.mark.parametrize(
    ("typed", "expected"), [("lau", ["launch"]), ("watch --j", ["--json"]), ("--url x la", ["launch"])]
)
def test_bash_completes_commands_and_options(call: Call, typed: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(call("completion", "bash")[1])
    words = ["parlab", *typed.split(" ")]
    source = f"source completion; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _parlab; "
    done = subprocess.run(
        ["bash", "-c", source + 'echo "${COMPREPLY[@]}"'], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_the_script(call: Call, shell: str, tmp_path: Path) -> None:
    code, script, _ = call("completion", shell)
    assert (code, "launch" in script, "--dry-run" in script or "-l dry-run" in script) == (0, True, True)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed on this machine")
    (tmp_path / "completion").write_text(script)
    assert subprocess.run([program, "-n", str(tmp_path / "completion")]).returncode == 0
