"""Tests of the number of processes that a program states when it starts."""

import pytest

from parlab.formats import read_document
from parlab.formats.grammar.processes import stated_processes


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        ("[01/05 22:15:15 detectron2]: Rank of current process: 0. World size: 8", 8),
        ("[2024-03-01 10:00:00,000] [    INFO] - world_size                    : 16", 16),
        ("------- Setting up distributed: world size 64, TP 2, PP 4, CP 1 --------", 64),
        ("2021-03-01 10:00:00 | INFO | fairseq_cli.train | training on 8 devices (GPUs/TPUs)", 8),
        ("All distributed processes registered. Starting with 4 processes", 4),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4", 4),
        ("Process 0, total 8, device cuda:0.", 8),
        ("Using 8 GPU(s)...", 8),
        ("    GPU number: 4", 4),
        ("Num processes: 2", 2),
        ("[20250710 12:00:00][rank-7/8][INFO ] iteration 1", 8),
        ("WORLD INFO DICT: {'node-0': [0, 1, 2, 3], 'node-1': [0, 1, 2, 3]}", 8),
        ("{'trainer': {'n_gpus_per_node': 8, 'nnodes': 2}}", 16),
        ("data parallel size: 16, pipeline parallel size: 2, tensor parallel size: 4", 128),
        ("rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0", None),
        ("world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl", None),
        ("local world size: 4", None),
        ("model parallel world size: 2", None),
        ("dp_world_size: 8", None),
        ("Running tokenizer on dataset (num_proc=16): 100%", None),
        ("Starting preprocessing with 32 processes", None),
        ("training with 4 workers", None),
        ("{'n_gpus_per_node': 8}", None),
        ("world_size: 0", None),
    ],
)
def test_a_line_states_the_processes_of_the_world(text: str, processes: int | None) -> None:
    assert stated_processes(text) == processes


def _steps(first: int, last: int, loss: float) -> list[str]:
    return [f"step {at} | loss: {loss - at / 100:.2f} | step time: 0.5 s" for at in range(first, last)]


def test_each_launch_has_the_processes_that_were_stated_before_it() -> None:
    lines = ["World size: 8", "World size: 2", *_steps(1, 5, 9.0), "World size: 16", *_steps(1, 5, 8.0)]
    document = read_document(lines, file="two.log")
    assert [segment.launch.world_size for segment in document.segments] == [8, 16]


def test_processes_stated_behind_the_steps_are_those_of_the_only_launch() -> None:
    document = read_document([*_steps(1, 5, 9.0), "World size: 8"], file="one.log")
    assert [segment.launch.world_size for segment in document.segments] == [8]


def test_of_the_processes_stated_behind_the_arguments_the_largest_number_is_that_of_the_world() -> None:
    dump = ["----- arguments -----", "  global_batch_size ........... 32", "----- end of arguments -----"]
    steps = [f" iteration {at:8d}/     100 | elapsed time per iteration (ms): 500.0 |" for at in range(1, 5)]
    for stated in (["World size: 8", "World size: 2"], ["World size: 2", "World size: 8"]):
        document = read_document([*dump, *stated, *steps], file="one.log")
        (launch,) = [segment.launch for segment in document.segments]
        assert (launch.world_size, launch.global_batch_size) == (8, 32)
