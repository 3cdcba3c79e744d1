"""Numbers of GPUs in sentences."""

from __future__ import annotations

import pytest

from parlab.formats.documents.prose_gpus import stated_gpus


@pytest.mark.parametrize(
    ("text", "gpus", "nodes"),
    [
        ("The training use fp32 and runs on 1 node with 16 Nvidia V100 GPUs.", 16, 1),
        ("We trained on 4 nodes with 8x A100 80GB each.", 32, 4),
        ("Hardware: two nodes of 8 H100 GPUs", 16, 2),
        ("A cluster of 3 machines with 1 V100", 3, 3),
        ("All runs use 64 GPUs.", 64, None),
        ("Hardware: 8x NVIDIA A100-SXM4-80GB, NVLink", 8, None),
        ("Benchmarked on 1,024 H100 GPUs", 1024, None),
    ],
)
def test_a_sentence_states_the_gpus_of_what_was_run(text: str, gpus: int, nodes: int | None) -> None:
    assert stated_gpus(text) == (gpus, nodes)


@pytest.mark.parametrize(
    "text",
    [
        "Performance from 1 to 128 GPUs",
        "up to 64 GPUs are used on the cluster",
        "they used 80GB A100s with 312TFlops/gpu",
        "we are using 32GB V100s with 125TFlops/gpu",
        "training nodes with 4x V100-32GB because there are too few 8x nodes",
        "our nodes have 128GB total gpu memory each",
        "runs on 8 GPUs or 16 GPUs",
        "Each node has 4 GPUs",
        "minimum number of nodes to fit 175B",
        "DP = (total number of GPUs // MP size)",
    ],
)
def test_other_sentences_state_none(text: str) -> None:
    assert stated_gpus(text) is None
