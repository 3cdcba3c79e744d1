"""Contents of a fresh demo: a user, sweeps that are ready to launch, and published results."""

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Experiment
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.published import published_run_add
from parlab.lab.services.tagging import experiments_tag
from runners.wire.protocol import RunState

from . import reporting, slower
from .imported import CASE, SCALING, published_documents
from .networks import network_sweeps
from .report import demo_report, scaling_report
from .sweeps import demo_sweeps, megatron_command
from .tuning import bert_base_to_tune

DEMO_USER = "demo"

# "Result GPT-3 Small": GPipe and 1F1B on 3 AWS p3.2xlarge, seconds per iteration by micro batch size 1, 2, 4.
THREE_NODES: dict[str, Any] = {
    "model": {
        "num_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "sequence_length": 2048,
        "vocab_size": 50257,
    },
    "train": {"global_batch_size": 64, "micro_batch_size": 1, "iterations": 10, "warmup_steps": 1},
    "parallel": {"engine": "pipeline", "pipeline_parallel_size": 3, "schedule": "gpipe"},
    "cluster": {"nodes": 3, "gpus_per_node": 1},
}
NETWORKS = [
    "default (about 0.1ms; up to 10Gbps)",
    "delay 1ms bandwidth 5Gbps",
    "delay 5ms bandwidth 2Gbps",
    "delay 10ms bandwidth 1Gbps",
]
STEP_TIMES_S = {
    "gpipe": [[6.64, 6.76, 6.94], [6.68, 6.82, 7.01], [6.70, 6.96, 7.31], [8.38, 8.61, 9.08]],
    "1f1b": [[6.54, 6.65, 6.86], [6.86, 7.05, 7.22], [8.42, 8.40, 8.57], [11.21, 11.03, 11.35]],
}


def allow_commands(path: Path) -> Path:
    """Allow the daemon of this machine to start only the commands of the demo sweeps and of the demo's watch."""
    path.write_text(json.dumps([megatron_command(settings.BASE_DIR)[:1], slower.command()[:-1]]))
    return path


@transaction.atomic
def demo_experiments(user: User) -> bool:
    """Create the experiments unless any exist, so that deleted experiments are not created again.

    Returns whether they were created.
    """
    if Experiment.objects.exists():
        return False
    published_content(user)
    ready_sweeps(user)
    experiment_create(
        name=reporting.EXPERIMENT,
        question="How does a training that parlab did not launch come in?",
        notes="One small training, reported in each of the four ways of `docs/use/logging.md`: by parlab's client, by"
        " the calls of an MLflow client, as lines that `parlab run` reads, and as a store that was imported.",
        owner=user,
    )
    return True


def published_content(user: User) -> None:
    """Import published results, with reports about them and pictures of one case."""
    imported = published_documents(user)
    scaling_report(imported[SCALING.file], user)
    # Drawn as soon as a worker runs.
    pictures_request(user=user, run=imported[CASE.file].runs.get())
    three_nodes = published_three_nodes(user)
    demo_report(three_nodes, user)
    experiments_tag(experiments=[three_nodes], name="published")


def ready_sweeps(user: User) -> None:
    """Create the experiments that are ready to launch."""
    bert_base_to_tune(user)
    for sweep in [*network_sweeps(), *demo_sweeps(settings.BASE_DIR)]:
        experiment = experiment_create(name=sweep.name, question=sweep.question, owner=user)
        config_save(experiment=experiment, data=sweep.data, sweep=sweep.sweep, note=sweep.note, user=user)


def published_three_nodes(user: User) -> Experiment:
    """Create the runs of two published tables and the published out-of-memory result."""
    experiment = experiment_create(
        name="GPT-3 small on three nodes",
        question="How much does a slow network slow down GPipe and 1F1B?",
        source="Published results: 3 AWS p3.2xlarge, GPT-3 small (12 layers, 4 per node), global batch size 64, seconds"
        " per iteration measured on rank 0, without the first of 10 iterations. A micro batch size of 8 exceeds the"
        " memory.",
        owner=user,
    )
    config = config_save(
        experiment=experiment,
        data=THREE_NODES,
        sweep={"parallel.schedule": list(STEP_TIMES_S), "train.micro_batch_size": [1, 2, 4]},
        note="The network is an axis of the published tables; the emulated three nodes experiments run it.",
        user=user,
    )
    for schedule, table in STEP_TIMES_S.items():
        for network, row in zip(NETWORKS, table, strict=True):
            for micro_batch_size, seconds in zip([1, 2, 4], row, strict=True):
                published_run_add(
                    config=config,
                    point={
                        "parallel.schedule": schedule,
                        "network": network,
                        "train.micro_batch_size": micro_batch_size,
                    },
                    user=user,
                    summary=_published_summary(seconds),
                )
    published_run_add(
        config=config,
        point={"method": "ZeRO-3 data parallel"},
        user=user,
        summary={},
        state=RunState.OOM,
        reason="Fail due to running out of DRAM: for this model each data parallel node"
        " can only run a batch size of 1.",
    )
    return experiment


def _published_summary(step_time_s: float) -> dict[str, Any]:
    """Return the summary of a published step time, with the quantities that follow from the configuration."""
    samples, tokens = THREE_NODES["train"]["global_batch_size"], THREE_NODES["model"]["sequence_length"]
    return {
        "steps": {"count": 9, "first": 2, "last": 10, "left_out": [1], "why": "excluded by the source"},
        "step_time_s": {"mean": step_time_s},
        "samples_per_s": samples / step_time_s,
        "tokens_per_s": samples * tokens / step_time_s,
        "ms_per_sample": 1000 * step_time_s / samples,
        "basis": "published mean of 9 iterations (2 to 10), measured on rank 0; throughput derived from it",
    }
