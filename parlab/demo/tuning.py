"""A space for the tuner: BERT-base under ZeRO, with the Hugging Face Trainer as what it is compared with."""

from typing import Any

from django.contrib.auth.models import User

from parlab.lab import services

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
    """Make the experiment: the Trainer as version 1, the space as version 2, which a study searches by default."""
    experiment = services.experiment_create(
        name="Tune BERT-base",
        question="Which ZeRO stage and micro batch trains BERT-base fastest, and is it faster than without DeepSpeed?",
        owner=user,
    )
    services.config_save(
        experiment=experiment,
        data=_data("hf", implementation="huggingface"),
        sweep=_sizes(),
        note="Baseline: the Hugging Face Trainer, its micro batch grown by hand",
        user=user,
    )
    services.config_save(
        experiment=experiment,
        data=_data("zero"),
        sweep={"parallel.zero_stage": [0, 1, 2, 3], **_sizes()},
        note="The space: press Tune",
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
