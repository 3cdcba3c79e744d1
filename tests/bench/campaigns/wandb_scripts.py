"""What scripts do with the unmodified client of W&B: `python wandb_scripts.py NAME PROJECT` runs one of them.

Each checks what its client reads back; `wandbs.py` checks what the server has stored.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import wandb

PROJECT = sys.argv[2] if len(sys.argv) > 2 else "scenarios"
Script = Callable[[], None]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def init(**options: Any) -> Any:
    settings = {"silent": True, "init_timeout": 60, "x_disable_stats": True, **options.pop("settings", {})}
    return wandb.init(project=PROJECT, settings=wandb.Settings(**settings), **options)


def stored(run_id: str) -> Any:
    return wandb.Api().run(f"{wandb.Api().default_entity}/{PROJECT}/{run_id}")


def rows(run_id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in stored(run_id).scan_history()]


@script
def live() -> None:
    config = {"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.95]}, "text": "naïve ✓"}
    sampling = {"x_disable_stats": False, "x_stats_sampling_interval": 1}
    run = init(id="live", name="a name", config=config, settings=sampling)
    print("first line")
    for step in range(200):
        run.log({"loss": 1 / (step + 1), "train/acc": step, "deep": {"er": step * 2}})
    print("progress 1\rprogress 2\rprogress 3")
    run.log({"nan": math.nan, "inf": math.inf})
    time.sleep(2.5)
    run.summary["best"] = 0.25
    run.finish()


@script
def config_update() -> None:
    run = init(id="config", config={"lr": 0.1, "layers": 2})
    run.config.update({"lr": 0.2, "added": True}, allow_val_change=True)
    run.config["later"] = [1, 2]
    run.log({"loss": 1})
    run.finish()
    assert stored("config").config == {"lr": 0.2, "layers": 2, "added": True, "later": [1, 2]}


@script
def define_metric() -> None:
    run = init(id="define")
    run.define_metric("tokens")
    run.define_metric("loss", step_metric="tokens", summary="min")
    for step, loss in enumerate((3.0, 1.0, 2.0)):
        run.log({"loss": loss, "tokens": step * 1_000})
    run.finish()
    assert stored("define").summary["loss"]["min"] == 1.0


@script
def resume_allow() -> None:
    for part in range(3):
        run = init(id="allow", resume="allow", config={"a": 1})
        print(f"part {part}")
        run.log({"loss": 3 - part})
        run.finish()
    assert [(row["_step"], row["loss"]) for row in rows("allow")] == [(0, 3), (1, 2), (2, 1)]


@script
def resume_must() -> None:
    with pytest.raises(wandb.errors.UsageError):
        init(id="unknown", resume="must")
    init(id="must", config={"a": 5}).finish()
    run = init(id="must", resume="must")
    assert run.resumed
    assert run.config["a"] == 5
    run.log({"loss": 1})
    run.finish()


@script
def resume_never() -> None:
    run = init(id="never", resume="never")
    run.log({"loss": 1})
    run.finish()
    with pytest.raises(wandb.errors.UsageError):
        init(id="never", resume="never")


@script
def started_again() -> None:
    for part in range(2):
        run = init(id="again")
        run.log({"loss": 10 + part})
        run.log({"loss": 20 + part})
        run.finish()
    assert [row["loss"] for row in rows("again")] == [11, 21]


@script
def labels() -> None:
    init(id="labels", group="sweep 7", job_type="eval", tags=["a", "b"], notes="some notes").finish()
    run = stored("labels")
    assert (run.group, run.job_type, sorted(run.tags), run.notes) == ("sweep 7", "eval", ["a", "b"], "some notes")


@script
def alert() -> None:
    run = init(id="alert")
    run.alert("Loss is high", "12.5 at step 3", level=wandb.AlertLevel.WARN)
    run.log({"loss": 12.5})
    run.finish()


@script
def media() -> None:
    run = init(id="media")
    for step in range(2):
        picture = np.full((8, 8, 3), 100 + step, dtype=np.uint8)
        run.log(
            {
                "picture": wandb.Image(picture, caption="c"),
                "histogram": wandb.Histogram([1, 2, 2, 3]),
                "table": wandb.Table(columns=["a", "b"], data=[[step, "x"]]),
                "text": "a text",
            }
        )
    run.finish()
    files = [file.name for file in stored("media").files()]
    assert sum(name.startswith("media/images/") for name in files) == 2, files
    assert sum(name.startswith("media/table/") for name in files) == 2, files
    assert rows("media")[1]["histogram"]["_type"] == "histogram"
    assert rows("media")[1]["text"] == "a text"


@script
def artifact() -> None:
    text = str(random.random())
    run = init(id="artifact")
    made = wandb.Artifact("data", "dataset", metadata={"rows": 3})
    with made.new_file("part/one.txt") as file:
        file.write(text)
    run.log_artifact(made, aliases=["best"])
    run.finish()
    run = init(id="user")
    used = run.use_artifact("data:best")
    folder = used.download(root="artifact-copy")
    assert Path(folder, "part/one.txt").read_text() == text
    assert used.metadata == {"rows": 3}
    run.finish()
    assert [each.name for each in stored("user").used_artifacts()] == ["data:v0"]
    assert [each.name for each in stored("artifact").logged_artifacts()] == ["data:v0"]


@script
def artifact_versions() -> None:
    run = init(id="versions")
    for content in ("one", "one", "two"):
        made = wandb.Artifact("model", "model")
        with made.new_file("weights.txt") as file:
            file.write(content)
        run.log_artifact(made).wait()
    run.finish()
    entity = wandb.Api().default_entity
    versions = [each.version for each in wandb.Api().artifacts("model", f"{entity}/{PROJECT}/model")]
    assert versions == ["v1", "v0"], versions
    latest = wandb.Api().artifact(f"{entity}/{PROJECT}/model:latest")
    assert latest.version == "v1"
    latest.aliases.append("production")
    latest.save()
    assert wandb.Api().artifact(f"{entity}/{PROJECT}/model:production").version == "v1"


@script
def shared() -> None:
    code = (
        "import sys, wandb\nrank = int(sys.argv[1])\n"
        f"run = wandb.init(project={PROJECT!r}, id='shared', settings=wandb.Settings(silent=True, mode='shared',"
        " x_disable_stats=True, x_label=f'rank-{rank}', x_primary=rank == 0, init_timeout=90))\n"
        "print(f'hello from {rank}')\nfor step in range(20): run.log({'loss': rank * 100 + step})\nrun.finish()\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(rank)]) for rank in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8


@script
def offline_sync() -> None:
    run = init(id="offline", mode="offline", config={"a": 1})
    for step in range(50):
        run.log({"loss": step})
    print("offline line")
    folder = run.settings.sync_dir
    run.finish()
    for _ in range(2):
        subprocess.run(["wandb", "sync", "--include-synced", folder], check=False, capture_output=True)
        subprocess.run(["wandb", "sync", "--no-skip-synced", folder], check=False, capture_output=True)
    assert [row["loss"] for row in rows("offline")] == list(range(50))


@script
def api_reads() -> None:
    for number in range(3):
        run = init(id=f"read-{number}", config={"lr": 10.0**-number}, group="even" if number % 2 == 0 else "odd")
        for step in range(100):
            run.log({"loss": step + number, **({"rare": step} if step % 10 == 0 else {})})
        run.finish()
    api = wandb.Api()
    path = f"{api.default_entity}/{PROJECT}"
    assert {run.id for run in api.runs(path)} == {"read-0", "read-1", "read-2"}
    assert [run.id for run in api.runs(path, filters={"config.lr": {"$lt": 0.05}})] == ["read-2"]
    assert {run.id for run in api.runs(path, {"group": "even"})} == {"read-0", "read-2"}
    assert [run.id for run in api.runs(path, {"summary_metrics.loss": {"$gte": 101}})] == ["read-2"]
    run = api.run(f"{path}/read-1")
    assert len(list(run.scan_history())) == 100
    assert len(list(run.scan_history(keys=["rare"]))) == 10
    assert [row["_step"] for row in run.scan_history(min_step=5, max_step=8)] == [5, 6, 7]
    sampled = run.history(keys=["loss"], samples=10, pandas=False)
    assert (len(sampled), sampled[-1]["loss"]) == (10, 100)


@script
def api_changes() -> None:
    run = init(id="change")
    run.log({"loss": 1})
    run.finish()
    run = stored("change")
    run.config["found"] = "later"
    run.tags.append("checked")
    run.name = "another name"
    run.summary["score"] = 7
    run.summary.update()
    run.update()
    run = stored("change")
    assert (run.name, run.config, run.tags) == ("another name", {"found": "later"}, ["checked"])
    assert run.summary["score"] == 7
    init(id="gone").finish()
    stored("gone").delete()
    with pytest.raises(wandb.errors.CommError):
        stored("gone")


@script
def failing() -> None:
    run = init(id="failing")
    run.log({"loss": 1})
    raise RuntimeError("this script fails")


@script
def interrupted() -> None:
    run = init(id="interrupted")
    run.log({"loss": 1})
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


@script
def killed() -> None:
    code = (
        f"import time, wandb\nrun = wandb.init(project={PROJECT!r}, id='killed', settings=wandb.Settings(silent=True,"
        " x_disable_stats=True))\nprint(run.settings.sync_dir, flush=True)\n"
        "for step in range(100_000):\n    run.log({'loss': step, 'text': 'x' * 50})\n"
        "    if step == 3_000: print('ready', flush=True)\n"
        "    if step > 3_000: time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    assert process.stdout.readline().strip() == "ready"
    time.sleep(1)
    senders = psutil.Process(process.pid).children(recursive=True)
    for each in (*senders, process):
        each.kill()  # type: ignore[attr-defined]  # the client's own process, which sends, as well
    process.wait()
    for option in ("--no-skip-online", "--include-online"):  # newer and older clients
        subprocess.run(["wandb", "sync", option, folder], check=False, capture_output=True)
    losses = [row["loss"] for row in rows("killed")]
    assert len(losses) > 100, len(losses)
    assert losses == list(range(len(losses))), losses[:5]


@script
def server_killed() -> None:
    run = init(id="server-killed")
    for step in range(400):
        run.log({"loss": step})
        if step % 50 == 0:
            print(f"line {step}", flush=True)
        if step == 100:
            Path("kill-the-server").touch()
        time.sleep(0.05)
    run.finish()


@script
def not_served() -> None:
    run = init(id="not-served")
    run.log({"loss": 1})
    with pytest.raises(Exception, match="UpsertSweep is not served by parlab"):
        wandb.sweep({"method": "grid", "parameters": {"lr": {"values": [1]}}}, project=PROJECT)
    run.log({"loss": 2})
    run.finish()
    assert [row["loss"] for row in rows("not-served")] == [1, 2]


@script
def many_metrics() -> None:
    run = init(id="many")
    for step in range(20):
        run.log({f"layer/{number}": number + step for number in range(1_000)})
    run.finish()


@script
def lightning_logger() -> None:
    import lightning.pytorch as lightning
    import torch
    from lightning.pytorch.loggers import WandbLogger

    class Model(lightning.LightningModule):  # type: ignore[misc]  # not read
        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.randn(24, 4))
    logger = WandbLogger(project=PROJECT, id="lightning", name="lightning", settings=wandb.Settings(silent=True))
    trainer = lightning.Trainer(
        max_steps=6, log_every_n_steps=2, logger=logger, accelerator="cpu", enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    wandb.finish()


@script
def hugging_face() -> None:
    import torch
    import transformers

    os.environ |= {"WANDB_PROJECT": PROJECT, "WANDB_RUN_ID": "hugging-face", "WANDB_WATCH": "false"}
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    )
    row = {"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(1)}
    arguments = transformers.TrainingArguments(
        "out", per_device_train_batch_size=4, max_steps=6, logging_steps=2, report_to="wandb", use_cpu=True,
        save_strategy="no", disable_tqdm=True, run_name="hugging face",
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=[row] * 24).train()
    wandb.finish()


@script
def accelerate_tracker() -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(log_with="wandb", cpu=True)
    accelerator.init_trackers(
        PROJECT, config={"per_device_train_batch_size": 4}, init_kwargs={"wandb": {"id": "accelerate"}}
    )
    for step, loss in enumerate([3.0, 2.5, 2.25]):
        accelerator.log({"train/loss": loss}, step=step)
    accelerator.end_training()


@script
def torchtitan_logger() -> None:
    """The calls of torchtitan's logger: its configuration in sections, its names with units, steps that it counts."""
    sections = {"job": {"config_file": None, "dump_folder": "./outputs"}, "training": {"local_batch_size": 8}}
    folder = Path("outputs", "tb", "20261127-2150")
    folder.mkdir(parents=True)
    wandb.init(project=PROJECT, dir=str(folder), config={**sections, "experimental": {"pipelines": ["a", "b"]}})
    for step in (1, 10, 20):
        wandb.log({"validation_metrics/loss": 9.0 - step}, step=step)
        wandb.log(
            {
                "loss_metrics/global_avg_loss": 8.0 - step / 10,
                "throughput(tps)": 5_000.0 + step,
                "time_metrics/end_to_end(s)": 0.5,
                "memory/max_reserved(GiB)": 42.5,
                "mfu(%)": 41.25,
            },
            step=step,
        )
    assert wandb.run is not None
    run_id = wandb.run.id
    wandb.finish()
    kept = [(row["_step"], row["loss_metrics/global_avg_loss"], row["validation_metrics/loss"]) for row in rows(run_id)]
    assert kept == [(1, 7.9, 8.0), (10, 7.0, -1.0), (20, 6.0, -11.0)], kept


@script
def verl_tracking() -> None:
    """The calls of verl's tracking: an ID of project and name, and the table of generations, longer each time."""
    run_id = f"{PROJECT}--grpo-7b".replace(" ", "-")
    config = {
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2-7B"}},
        "trainer": {"total_epochs": 2, "wandb_proxy": None},
    }
    wandb.init(project=PROJECT, name="grpo-7b", config=config, settings=None, id=run_id)
    columns: list[str | int] = ["step", "input_1", "output_1", "score_1"]
    table = wandb.Table(columns=columns)
    for step in (1, 2, 3):
        grown = wandb.Table(columns=columns, data=table.data)
        grown.add_data(step, "2 + 2?", "4 ✓", 1.0)
        wandb.log({"val/generations": grown}, step=step)
        table = grown
        data = {"critic/score/mean": np.float64(step / 4), "perf/throughput": np.float32(1_500), "timing_s/step": 12.5}
        wandb.log(data=data, step=step)
    wandb.finish(exit_code=0)
    assert [row["critic/score/mean"] for row in rows(run_id)] == [0.25, 0.5, 0.75]


if __name__ == "__main__":
    SCRIPTS[sys.argv[1]]()
