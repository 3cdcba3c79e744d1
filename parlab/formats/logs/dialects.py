"""The trainers whose step lines `steplines.py` reads: signs of their lines, and how parts without a key are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from parlab.formats.grammar.steplines import Dialect
from parlab.formats.logs.dialects_more import FRAMEWORKS, VISION

# SkyRL times the phases of a step.
_PHASES = (re.compile(r"\bFinished: '(\w{1,80})', time cost: ([\d.]{1,12})s"), r"timing_s/\1: \2")
# Name -> dialect; `pairs` is also the fallback for files in no other format.
DIALECTS: dict[str, Dialect] = {
    "nanogpt": Dialect(
        (
            (re.compile(r"^step\s{1,8}\d+(?:/\d+)?(?: \([\d.]+%\))? \| (?:train )?loss"), 10),
            (re.compile(r"^iter \d+: loss [\d.]+, time [\d.]+ms"), 10),
            (re.compile(r"(?i)^step \d+(?: \||:) (?:val(?:idation)? (?:bpb|loss)|train loss)"), 6),
        ),
        reads="nanoGPT, nanochat, llm.c: `step N | loss | dt | tok/sec`",
        settings={"num_processes": "world_size", "tokens in all": "tokens_per_step",
                  "gradient accumulation steps": "gradient_accumulation_steps",
                  "tokens per iteration will be": "tokens_per_step"},
        rewritten=(
            (re.compile(r"^Total batch size ([\d,]{1,20}) => (?=gradient accumulation steps: \d)"),
             r"tokens in all: \1 | "),
            # nanochat leaves out the sign of a percentage.
            (re.compile(r"(\| lrm: .{1,120}\| mfu: [\d.]{1,12})(?= \|)"), r"\1%"),
        ),
    ),
    "torchtune": Dialect(
        (
            (re.compile(r"^Step \d+ \| loss:\S+ "), 10),
            (re.compile(r"\btorchtune\.utils\."), 4),
        ),
        reads="torchtune: `Step 1 | loss:... tokens_per_second_per_gpu:...`",
    ),
    "internlm": Dialect(
        (
            (re.compile(r"record_current_batch_training_metrics"), 10),
            (re.compile(r"\btgs \(tokens/gpu/second\)="), 10),
        ),
        reads="InternLM: `record_current_batch_training_metrics -- tflops=...,step=...`",
        seconds=re.compile(r"^(?:fwd_bwd_time|bwd_time|fwd_time)$"),
    ),
    "verl": Dialect(
        (
            (re.compile(r"\bstep:\d+ - [\w/@.]+:(?:np\.\w+\()?[\d.e+-]+\)? - "), 10),
            (re.compile(r"\b(?:perf|step|rollout) \d+: \{'[\w]+/"), 10),
            (re.compile(r"'(?:perf|rollout)/\w+': "), 4),
        ),
        reads="verl `step:3 - actor/... - timing_s/step:...`, slime `perf 3: {'perf/...': ...}`",
        seconds=re.compile(r"^perf/\w{1,60}_time$"),
        # NumPy 2 prints its type around a number.
        rewritten=((re.compile(r"\bnp\.(?:float|int)\d{1,2}\(([^()]{1,40})\)"), r"\1"),),
    ),
    "fairseq": Dialect(
        (
            (re.compile(r"\| (?:train_inner|train) \| (?:epoch \d+|\{\"epoch\")"), 10),
            (re.compile(r"\bnum_updates=\d+, lr="), 6),
        ),
        reads="fairseq: `train_inner | epoch 001: 10 / 100 loss=...`",
    ),
    "colossalai": Dialect(
        (
            (re.compile(r"\bavg_duration: [\d.]+, avg_throughput: "), 40),
            (re.compile(r"\bTFLOPS per GPU by Megatron: "), 40),
            (re.compile(r"\bBooster init max CUDA memory: "), 40),
            (re.compile(r"\bcolossalai - colossalai - [A-Z]+: "), 10),
        ),
        reads="ColossalAI: bars of steps, `avg_duration: ..., avg_throughput: ...`",
        settings={"world size": "world_size", "dp_world_size": "data_parallel_size"},
    ),
    "mlx-lm": Dialect(
        (
            (re.compile(r"^Iter \d+: (?:Train|Val) loss [\d.]+, "), 10),
        ),
        reads="mlx-lm: `Iter 10: Train loss ..., It/sec ..., Tokens/sec ...`",
    ),
    "composer": Dialect(
        (
            (re.compile(r"^(?:\[epoch=\d+(?:/\d+)?\])?\[batch=\d+(?:/\d+)?\]:"), 10),
            (re.compile(r"^\s+Train (?:memory|throughput|time|loss|metrics|trainer)/\w+"), 2),
        ),
        reads="Composer and llm-foundry: `[batch=4/10]:` and the lines below it",
        has_blocks=True,
        has_tags=True,
    ),
    "bars": Dialect(
        (
            (re.compile(r"\d%\|[^|]{0,300}\|\s{0,8}[\d.]{1,15}[kMG]?/[\d.]{1,15}[kMG]? \[\d\d?:\d\d"), 1),
            (re.compile(r"[━╸╺] \d+/\d+ +\d[\d:]{3,11} • [\d:-]+ +[\d.]+(?:it/s|s/it)"), 4),
            (
                re.compile(
                    r"(?:Epoch|Episode|Train(?:ing| epoch))[^|%]{0,40}\d%\|[^|]{0,300}\|\s{0,8}\d+/\d+ \[\d\d?:\d\d"
                ),
                2,
            ),
        ),
        reads="bars of tqdm, Lightning and Rich: `92%| 11/12 [03:32<00:19, 19.50s/it, loss=2.1]`",
        rewritten=(_PHASES,),
    ),
    **FRAMEWORKS,
    **VISION,
    "pairs": Dialect(
        (),
        reads="lines in no other format with a counter and `key: value unit` cells",
        rewritten=(
            _PHASES,
            # A total, and what it is per GPU.
            (
                re.compile(r"([\d.]{1,12}) TFLOP/?[sS] \(([\d.]{1,12}) TFLOP/?[sS] per (?:rank|GPU|device)\)"),
                r"\2 TFLOP/s/GPU, flops of all GPUs: \1 TFLOP/s",
            ),
            # fairseq2 prints memory as a share of the GPU's and in bytes.
            (
                re.compile(r"((?:Peak )?Device Memory): (\d{1,3}%) \((\d[\d.]{0,12} ?[KMG]i?B)\)"),
                r"\1: \3 | \1 share: \2",
            ),
            # BigDL counts the records of an iteration.
            (re.compile(r"\bTrain (\d{1,12}) in (?=\d)"), r"records: \1, in "),
            # RETURNN names the device between the memory and its value.
            (re.compile(r"(?<=\w):(?:cuda|gpu|npu|xpu):\d{1,4}(?= \d)"), ":"),
            # Lightning-Thunder's benchmark prints the total.
            (re.compile(r"^TFLOP/s: (?=[\d.]{1,12}\s*$)"), "flops of all GPUs: "),
        ),
        settings={"Micro BS": "micro_batch_size", "Global BS": "global_batch_size", "Seq Length": "sequence_length",
                  "Number of Layers": "num_layers", "tokens per iteration will be": "tokens_per_step"},
        has_blocks=True,
    ),
}  # fmt: skip


DIALECTS = {name: replace(dialect, trainer=name) for name, dialect in DIALECTS.items()}


def is_readable(head: Iterable[str]) -> bool:
    """Return whether lines of no known format contain steps or several measurements that `pairs` can read."""
    measured = 0
    for record in DIALECTS["pairs"].read(islice(head, 2_000)):
        measured += record.kind == "metrics"
        if record.kind == "step" or measured > 1:
            return True
    return False
