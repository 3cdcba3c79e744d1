"""Published results for a fresh demo, imported like files of a user."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User

from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Experiment
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.tagging import experiments_tag

DIRECTORY = Path(__file__).parent / "documents"


class PublishedDocument(NamedTuple):
    """A page of published results and the question that it answers."""

    file: str
    name: str
    question: str
    source: str
    tags: tuple[str, ...]


CASE = PublishedDocument(
    "bert-large-8x4.rst",
    "BERT-large in eight stages of four shards",
    "Which throughput does this manual device placement reach, and how was it configured?",
    "Results of the published note “BERT-large GPU case II”; the note does not define its unit fps.",
    ("bert", "sharding"),
)
SCALING = PublishedDocument(
    "megatron-bert-scaling.md",
    "Megatron BERT 345M on 1 to 128 A100",
    "How well does BERT 345M scale from one GPU to sixteen nodes?",
    "Results of the scalable-transformer project, measured on ThetaGPU (8 A100 of 40 GB per node).",
    ("a100", "bert", "scaling"),
)
LAYOUTS = PublishedDocument(
    "layouts-of-gpt.md",
    "Layouts of GPT from 1.7B to 1T",
    "Which tensor, pipeline and data parallel sizes suit each model size, and which throughput do they reach?",
    "Narayanan et al., SC21, table 1 (arXiv 2104.04473); the layouts are from notes of the BigScience workshop.",
    ("a100", "gpt", "scaling"),
)
LARGEST = PublishedDocument(
    "largest-gpt-on-v100.md",
    "Largest GPT on nodes of four V100",
    "What is the largest GPT that fits on 4 to 64 nodes with four V100 of 32 GB each?",
    "BigScience workshop, experiments/gpt2.md: Megatron-LM on Jean Zay.",
    ("v100", "gpt"),
)
FOUR_DAYS = PublishedDocument(
    "gpt-52b-on-v100.md",
    "GPT 52B on 64 V100, on four days",
    "How fast does a 52B model train on 16 nodes, and how much does the result vary from day to day?",
    "BigScience workshop, experiments/gpt2.md: Megatron-LM on Jean Zay; the notes state an accuracy of 40 %.",
    ("v100", "gpt"),
)
MLPERF = PublishedDocument(
    "mlperf-gpt3-h100.md",
    "MLPerf GPT-3 on 512 to 10,752 H100",
    "How does the training of GPT-3 175B scale on H100 GPUs?",
    "MLPerf Training v3.1, results of NVIDIA and Azure (mlcommons/training_results_v3.1).",
    ("h100", "gpt", "scaling"),
)
AUTOTUNING = PublishedDocument(
    "autotuning-bert.md",
    "Autotuning BERT-base with DeepSpeed",
    "How much faster are the settings of the autotuner than hand-tuned ones?",
    "microsoft/DeepSpeedExamples, training/autotuning/hf/bert-base: one node of 16 V100.",
    ("v100", "bert", "zero"),
)
DOCUMENTS = (CASE, AUTOTUNING, MLPERF, LARGEST, LAYOUTS, FOUR_DAYS, SCALING)
"""The last document is the first on the home page: it has findings."""


def published_documents(user: User) -> dict[str, Experiment]:
    """Import all documents, each into a separate experiment; return the experiments by file name."""
    return {document.file: _imported(document, user) for document in DOCUMENTS}


def _imported(document: PublishedDocument, user: User) -> Experiment:
    experiment = experiment_create(name=document.name, question=document.question, source=document.source, owner=user)
    with (DIRECTORY / document.file).open("rb") as stream:
        upload_import(experiment=experiment, name=document.file, stream=stream, user=user)
    for tag in (*document.tags, "published"):
        experiments_tag(experiments=[experiment], name=tag)
    return experiment
