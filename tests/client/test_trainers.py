"""The snippets of docs/use/logging.md with the unmodified trainers, all against one server in its own process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import ROOT
from tests.client.served import Served, served
from tests.client.snippets import Outcome, run_all, snippet
from tests.client.test_commands import HEAD, iterations

pytestmark = pytest.mark.slow

MODEL = """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [(torch.full((4, 2), float(n)), torch.ones(4, 1)) for n in range(6)]
"""
LIGHTNING = """
class Module(lightning.pytorch.LightningModule):
    def __init__(self, width=2):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

import functools
data = torch.utils.data.TensorDataset(torch.rand(24, 2), torch.ones(24, 1))
batches = torch.utils.data.DataLoader(data, batch_size=4)
model = Module()
quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False,
         "enable_model_summary": False, "default_root_dir": "out"}
lightning.pytorch.Trainer = functools.partial(lightning.pytorch.Trainer, **quiet)
"""
HUGGING_FACE = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

model = Model()
dataset = [{"x": torch.tensor([float(n), 1.0]), "labels": torch.tensor([float(n)])} for n in range(32)]
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=6, logging_steps=2, report_to="none", use_cpu=True,
    save_strategy="no", disable_tqdm=True, run_name="hugging face with MLflow",
)
"""
# DeepSpeed would compile an extension for ranks on one CPU, which takes a minute; gloo does the work, too.
DEEPSPEED = """
import importlib, os
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
          "csv_monitor": {"enabled": True, "output_path": "out", "job_name": "job"}}
"""
MLFLOW = "loss, rate = 2.5, 1000.0\n"
# The calls that NVIDIA's Megatron Bridge makes of the client (`training/state.py`, `training/utils/mlflow_utils.py`):
# many parameters at once, sanitised names, timers, checkpoints as artifacts, tags of the checkpoint that it loads.
BRIDGE = """
import os, pathlib
mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
mlflow.set_experiment("Warm-up length")
assert mlflow.active_run() is None
mlflow.start_run(run_name="megatron bridge", tags={"team": "a"})
settings = {f"model.setting_{n}": "None" for n in range(250)}
mlflow.log_params({**settings, "train.micro_batch_size": 2, "train.global_batch_size": 64,
                   "model.tensor_model_parallel_size": 2, "model.num_layers": 12, "model.seq_length": 1024})
mlflow.set_tags({"last_loaded_checkpoint": "/a/iter_1", "checkpoint_base_dir": "/a"})
for step in range(1, 4):
    mlflow.log_metrics({"learning-rate": 1e-4}, step=step)
    mlflow.log_metrics({"train/lm loss": 5.0 - step, "train/iteration-time": 0.25}, step=step)
    mlflow.log_metrics({"forward-backward-time": 0.2, "optimizer-time": 0.01}, step=step)
pathlib.Path("iter_3").mkdir()
pathlib.Path("iter_3/common.pt").write_bytes(bytes(1000))
mlflow.log_artifacts("iter_3", artifact_path="checkpoints/iter_0000003")
mlflow.end_run()
"""
# NeMo's exp_manager makes Lightning's logger with these arguments (`nemo/utils/exp_manager.py`, MLFlowParams).
NEMO = (
    LIGHTNING
    + """
import os
from lightning.pytorch.loggers import MLFlowLogger
logger = MLFlowLogger(
    run_name="nemo", experiment_name="Warm-up length", tracking_uri=os.environ["MLFLOW_TRACKING_URI"], tags=None,
    save_dir="./mlruns", prefix="", artifact_location=None, run_id=None, log_model=False,
)
trainer = lightning.pytorch.Trainer(max_steps=6, log_every_n_steps=2, logger=False)
trainer.logger = logger
logger.log_hyperparams({"model": {"micro_batch_size": 4, "optim": {"lr": 0.1}}})
trainer.fit(model, batches)
"""
)
FAILING = (
    LIGHTNING
    + """
import parlab
class Failing(Module):
    def on_train_batch_end(self, *arguments):
        raise RuntimeError("the module failed")
callback = parlab.LightningCallback(experiment="Warm-up length", name="lightning failed")
lightning.pytorch.Trainer(max_steps=6, callbacks=[callback]).fit(Failing(), batches)
"""
)
SOURCES = {
    "pytorch": MODEL + snippet("Plain PyTorch").replace(" as run:", ' as run:\n    run.set_tags({"test": "pytorch"})'),
    "client": "loss = rate = 2.5\nforward = lambda: loss\n" + snippet("parlab's own client"),
    "mlflow": MLFLOW + snippet("MLflow clients"),
    "lightning": LIGHTNING + snippet("Lightning"),
    "lightning_mlflow": LIGHTNING + snippet("Lightning", number=1),
    "lightning_failed": FAILING,
    "hugging_face": HUGGING_FACE + snippet("Hugging Face"),
    "hugging_face_mlflow": HUGGING_FACE + snippet("Hugging Face", number=1),
    "accelerate": snippet("Hugging Face", number=2),
    "deepspeed": MODEL + DEEPSPEED + snippet("DeepSpeed"),
    "bridge": BRIDGE,
    "nemo": NEMO,
}
COMMANDS = {
    "torchrun": '#!/bin/bash\ncat megatron.log\necho "torchrun $*" >&2\n',
    "srun": """#!/bin/bash
# Starts the command once per node, with the variables that Slurm sets.
for node in 0 1; do
    SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "$@" &
done
wait
""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def variables(server: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of trainers: the server, and none of the variables of launchers."""
    removed = ("PARLAB_", "SLURM_", "MLFLOW_", "RANK", "WORLD_SIZE", "LOCAL_")
    rest = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    home = str(tmp_path_factory.mktemp("client"))
    paths = {"PARLAB_HOME": home, "PYTHONPATH": str(ROOT), "HF_HOME": home, "HF_HUB_OFFLINE": "1"}
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet", "OMP_NUM_THREADS": "1"}
    named = {
        "MLFLOW_EXPERIMENT_NAME": "Warm-up length",
        "DS_ACCELERATOR": "cpu",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }
    return {**rest, **paths, **quiet, **named, **server.variables}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the trainers run."""
    return tmp_path_factory.mktemp("trainers")


@pytest.fixture(scope="module")
def outcomes(variables: dict[str, str], directory: Path) -> dict[str, Outcome]:
    return run_all(SOURCES, variables, directory)


@pytest.fixture(scope="module")
def runs(server: Served, outcomes: dict[str, Outcome]) -> dict[str, dict[str, Any]]:
    """The runs that the trainers made, by their names."""
    connection = server.connection()
    listed = connection.json("GET", "/api/experiments/warm-up-length/runs/?page_size=100")["results"]
    paths = [f"/api/experiments/warm-up-length/runs/{run['number']}/" for run in listed]
    return {run["label"] or f"run {run['number']}": run for run in (connection.json("GET", path) for path in paths)}


def steps(server: Served, run: Mapping[str, Any], metric: str) -> list[int]:
    path = f"/api/experiments/warm-up-length/runs/{run['number']}/series/?metric={metric}"
    [rank] = server.connection().json("GET", path)["ranks"]
    return [int(step) for step in rank["steps"]]


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "lightning_failed"])
def test_the_snippet_runs(outcomes: dict[str, Outcome], name: str) -> None:
    assert outcomes[name].code == 0, outcomes[name].output


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("warm-up 100", list(range(100))),
        ("lightning", [1, 3, 5]),
        ("lightning with MLflow", [1, 3, 5]),
        ("nemo", [1, 3, 5]),
    ],
)
def test_the_loss_arrives_under_its_own_name(
    server: Served, runs: dict[str, dict[str, Any]], name: str, expected: list[int]
) -> None:
    assert runs[name]["state"] == "finished"
    assert steps(server, runs[name], "train/loss") == expected
    assert runs[name]["summary"]["sources"]["loss"] == "train/loss"


def test_phases_and_tensors_of_plain_pytorch_are_series(server: Served, runs: dict[str, dict[str, Any]]) -> None:
    tags = {
        name: server.connection().json("GET", f"/api/experiments/warm-up-length/runs/{run['number']}/reported/")["tags"]
        for name, run in runs.items()
    }
    run = next(runs[name] for name in runs if tags[name].get("test") == "pytorch")
    for metric in (
        "train/loss",
        "timer/data-loading",
        "timer/forward-compute",
        "timer/backward-compute",
        "timer/optimizer",
    ):
        assert steps(server, run, metric) == list(range(6))


def test_lightning_reports_hyperparameters_beside_the_settings_of_its_trainer(runs: dict[str, dict[str, Any]]) -> None:
    arguments = runs["lightning"]["launch"]["arguments"]
    assert (arguments["width"], arguments["world_size"]) == (2, 1)


def test_the_batch_of_lightnings_data_loader_is_that_of_the_run(runs: dict[str, dict[str, Any]]) -> None:
    train = runs["lightning"]["resolved"]["train"]
    assert (train["micro_batch_size"], train["global_batch_size"]) == (4, 4)


def test_an_exception_in_lightning_fails_the_run_with_its_reason(
    outcomes: dict[str, Outcome], runs: dict[str, dict[str, Any]]
) -> None:
    assert outcomes["lightning_failed"].code != 0
    assert runs["lightning failed"]["state"] == "failed"
    assert runs["lightning failed"]["reason"] == "RuntimeError: the module failed"


@pytest.mark.parametrize("name", ["hugging face", "hugging face with MLflow"])
def test_the_trainer_of_hugging_face_reports_settings_and_losses(
    server: Served, runs: dict[str, dict[str, Any]], name: str
) -> None:
    run = runs[name]
    assert (run["state"], run["resolved"]["train"]["micro_batch_size"]) == ("finished", 4)
    # MLflow's client logs for this trainer in threads, so that a later step may arrive first.
    assert sorted(steps(server, run, "loss")) == [2, 4, 6]
    assert run["summary"]["loss"]["last"] > 0


def test_the_monitor_of_deepspeed_counts_steps_and_passes_events_on(
    server: Served, runs: dict[str, dict[str, Any]], directory: Path
) -> None:
    run = runs["deepspeed"]
    assert (run["state"], run["resolved"]["train"]["micro_batch_size"]) == ("finished", 4)
    assert steps(server, run, "Train/Samples/lr") == steps(server, run, "train/loss") == [1, 2, 3, 4, 5, 6]
    [written] = directory.glob("out/job/*_lr.csv")
    assert len(written.read_text().splitlines()) == 7  # a heading, and one line a step


def test_megatron_bridge_reports_settings_timers_and_checkpoints(
    server: Served, runs: dict[str, dict[str, Any]]
) -> None:
    run = runs["megatron bridge"]
    assert (run["state"], run["resolved"]["train"]["global_batch_size"]) == ("finished", 64)
    assert run["resolved"]["parallel"]["tensor_parallel_size"] == 2
    assert run["summary"]["step_time_s"]["median"] == 0.25
    assert steps(server, run, "forward-backward-time") == [1, 2, 3]
    path = f"/api/experiments/warm-up-length/runs/{run['number']}/"
    artifacts = server.connection().json("GET", f"{path}reported/")["artifacts"]
    assert [(item["path"], item["size"]) for item in artifacts] == [("checkpoints/iter_0000003/common.pt", 1000)]


@pytest.mark.usefixtures("runs")
def test_the_numbers_of_the_runs_are_read_as_the_page_shows(variables: dict[str, str], tmp_path: Path) -> None:
    source = snippet("Numbers for notebooks").replace('runs("finished")', 'runs("finished")[3:4]')
    done = subprocess.run([sys.executable, "-c", source], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[1]) == (0, "finished"), done.stderr


def test_commands_and_the_sbatch_file_of_the_page_report_their_runs(
    server: Served, variables: dict[str, str], tmp_path: Path
) -> None:
    commands = {**COMMANDS, "parlab": f'#!/bin/bash\nexec {sys.executable} -m parlab.client.command.commands "$@"\n'}
    for name, source in commands.items():
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "megatron.log").write_text(HEAD + iterations(1, 20))
    environment = {**variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def shell(source: str, **more: str) -> None:
        done = subprocess.run(
            ["bash", "-euc", source], cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    shell(snippet("Megatron-LM", "bash"))
    shell(snippet("An sbatch file", "bash"), SLURM_JOB_ID="4711", SLURM_JOB_NUM_NODES="2")
    connection = server.connection()
    [run] = [
        run
        for run in connection.json("GET", "/api/experiments/warm-up-length/runs/?page_size=100")["results"]
        if run["label"] == "megatron"
    ]
    assert steps(server, run, "loss") == list(range(1, 21))
    [job] = connection.json("GET", "/api/experiments/two-nodes/runs/")["results"]
    log, _ = connection.request("GET", f"/api/experiments/two-nodes/runs/{job['number']}/log/")
    assert (job["state"], log.count(b"iteration       20/")) == ("finished", 2)
