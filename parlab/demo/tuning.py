"""A search space for the tuner: BERT-base with ZeRO, compared with the Hugging Face Trainer as baseline."""

from typing import Any

from django.contrib.auth.models import User

from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create

BERT_BASE: dict[str, Any] = {
    "kind": "bert",
    "attention_mask": "bidirectional",
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "sequence_length": 32,
    "vocab_size": 30522,
}
RANKS = 2
SIZES = [1, 2, 4]
STEPS = {"iterations": 11, "warmup_steps": 1}


def bert_base_to_tune(user: User) -> None:
    """Create the experiment: version 1 is the Trainer, version 2 the search space, which a study uses by default."""
    experiment = experiment_create(
        name="Tune BERT-base",
        question="Which ZeRO stage and micro batch size train BERT-base fastest, and do they beat the baseline?",
        owner=user,
    )
    config_save(
        experiment=experiment,
        data=_data("hf", implementation="huggingface"),
        sweep=_sizes(),
        note="Baseline: Hugging Face Trainer with increasing micro batch sizes",
        user=user,
    )
    config_save(
        experiment=experiment,
        data=_data("zero"),
        sweep={"parallel.zero_stage": [0, 1, 2, 3], **_sizes()},
        note="Search space: click Tune to start a study",
        user=user,
        as_next=True,
    )


def _data(engine: str, **model: Any) -> dict[str, Any]:
    return {
        "model": BERT_BASE | model,
        "train": {"global_batch_size": RANKS, "micro_batch_size": 1, **STEPS},
        "parallel": {"engine": engine, "data_parallel_size": RANKS},
        "cluster": {"device": "cpu"},
    }


def _sizes() -> dict[str, Any]:
    return {"train.micro_batch_size, train.global_batch_size": [[size, size * RANKS] for size in SIZES]}
