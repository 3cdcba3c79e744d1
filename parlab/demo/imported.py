"""Published facts for a fresh demo, brought in through the importers as a person would bring them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User

from parlab.ingest.imports import source_import
from parlab.lab import services
from parlab.lab.models import Experiment

DIRECTORY = Path(__file__).parent / "documents"


class PublishedDocument(NamedTuple):
    """A page of figures that others published, and what to ask of it."""

    file: str
    name: str
    question: str
    source: str
    tags: tuple[str, ...]


CASE = PublishedDocument(
    "bert-large-8x4.rst",
    "BERT-large in eight stages of four shards",
    "What does a placement by hand reach, and what was it set to?",
    "Figures of the published note “BERT-large GPU case II”; nothing says what its fps counts.",
    ("bert", "sharding"),
)
SCALING = PublishedDocument(
    "megatron-bert-scaling.md",
    "Megatron BERT 345M on 1 to 128 A100",
    "How well does BERT 345M scale from one GPU to sixteen nodes?",
    "Figures of a page of the scalable-transformer project, measured on ThetaGPU (8 A100 of 40 GB a node).",
    ("a100", "bert", "scaling"),
)
LAYOUTS = PublishedDocument(
    "layouts-of-gpt.md",
    "Layouts of GPT from 1.7B to 1T",
    "Which tensor, pipeline and data parallel sizes suit which model, and what do they reach?",
    "Narayanan et al., SC21, table 1 (arXiv 2104.04473), with the layouts spelled out by BigScience's notes.",
    ("a100", "gpt", "scaling"),
)
LARGEST = PublishedDocument(
    "largest-gpt-on-v100.md",
    "Largest GPT on nodes of four V100",
    "How large a GPT fits on 4 to 64 nodes of four V100 of 32 GB?",
    "BigScience workshop, experiments/gpt2.md: Megatron-LM on Jean Zay.",
    ("v100", "gpt"),
)
FOUR_DAYS = PublishedDocument(
    "gpt-52b-on-v100.md",
    "GPT 52B on 64 V100, on four days",
    "How fast does 52B train on 16 nodes, and how far can one day's number be trusted?",
    "BigScience workshop, experiments/gpt2.md: Megatron-LM on Jean Zay; good to 40 %, as the notes say.",
    ("v100", "gpt"),
)
MLPERF = PublishedDocument(
    "mlperf-gpt3-h100.md",
    "MLPerf GPT-3 on 512 to 10,752 H100",
    "How far does GPT-3 175B scale on H100?",
    "MLPerf Training v3.1, results of NVIDIA and Azure (mlcommons/training_results_v3.1).",
    ("h100", "gpt", "scaling"),
)
AUTOTUNING = PublishedDocument(
    "autotuning-bert.md",
    "Autotuning BERT-base with DeepSpeed",
    "How much does the tuner win over sizes that were found by hand?",
    "microsoft/DeepSpeedExamples, training/autotuning/hf/bert-base: one node of 16 V100.",
    ("v100", "bert", "zero"),
)
DOCUMENTS = (CASE, AUTOTUNING, MLPERF, LARGEST, LAYOUTS, FOUR_DAYS, SCALING)
"""The last one stands first on the home page: whose numbers can be doubted."""


def published_documents(user: User) -> dict[str, Experiment]:
    """Import all of them, each into an experiment of its own; returns these by file."""
    return {one.file: _imported(one, user) for one in DOCUMENTS}


def _imported(one: PublishedDocument, user: User) -> Experiment:
    experiment = services.experiment_create(name=one.name, question=one.question, source=one.source, owner=user)
    with (DIRECTORY / one.file).open("rb") as stream:
        source_import(experiment=experiment, name=one.file, stream=stream, user=user)
    for tag in (*one.tags, "published"):
        services.experiments_tag(experiments=[experiment], name=tag)
    return experiment
