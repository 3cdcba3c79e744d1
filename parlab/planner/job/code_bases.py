"""Code bases that train: what each keeps in memory, and how a row or a question names one.

What a code base does that its users rarely state: which kernels are fused, whether tensor parallel ranks gather logits,
in which precision the optimizer keeps its states. For a code base that is not named, several are possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from .practice import is_recent_device
from .workload import Job, Recompute

CodeBaseName = Literal[
    "Megatron-Bridge",
    "Megatron-Core",
    "NeMo AutoModel",
    "torchtitan",
    "MaxText",
    "Primus",
    "MosaicML FSDP",
    "DeepSpeed",
    "Megatron-LM",
    "eager",
]


class Habit(TypedDict, total=False):
    """Settings of a job that a code base decides."""

    fuses_pointwise: bool
    gathers_logits: bool
    copies_logits: bool
    fuses_loss: bool
    gradient_bytes: int
    optimizer_bytes: int
    recomputes_activation: bool
    has_8_bit_experts: bool
    recompute: Recompute
    offloads_activations: bool
    has_expandable_segments: bool


@dataclass(frozen=True)
class CodeBase:
    """A trainer and its habits."""

    name: CodeBaseName
    words: tuple[str, ...]
    """Lower-case texts in the framework or source of a row that name it."""
    habit: Habit


CODE_BASES = (
    CodeBase("Megatron-Bridge", ("megatron-bridge",), {}),
    CodeBase("Megatron-Core", ("megatron-core", "mcore", "nemo framework", "mlperf"), {}),
    CodeBase(
        # Weights, gradients and both moments of Adam in bf16, and a loss that works in place of the logits.
        "NeMo AutoModel",
        ("automodel",),
        {"fuses_loss": True, "gradient_bytes": 2, "optimizer_bytes": 4},
    ),
    CodeBase("torchtitan", ("torchtitan",), {"copies_logits": True}),
    CodeBase("MaxText", ("maxtext",), {}),
    CodeBase("Primus", ("primus",), {}),
    CodeBase("MosaicML FSDP", ("fsdp full_shard", "fsdp shard_grad_op"), {"fuses_loss": True}),
    CodeBase("DeepSpeed", ("deepspeed",), {}),
    CodeBase("Megatron-LM", ("megatron",), {}),
    CodeBase("eager", ("eager",), {"fuses_pointwise": False, "gathers_logits": True}),
)
"""Known code bases, the first whose word is in a text counts. Sources: documentation and recipes of each."""
Possible = Sequence[tuple[float, Habit]]
_NAMED: Possible = ((1.0, {}),)
_GATHERING: Habit = {"gathers_logits": True}
_UNNAMED: Possible = ((0.2, {}), (0.25, _GATHERING), (0.55, {**_GATHERING, "fuses_pointwise": False}))
"""Habits of code bases of 2023 that are not named, for models with gated MLPs: fused kernels and logits that stay
divided (Megatron-LM), gathered logits, and eager norms as well (Hagemann et al. 2023)."""
_EAGER: Possible = ((1.0, {**_GATHERING, "fuses_pointwise": False}),)
"""Norms that are known to be eager."""
_LIGHT: Habit = {"recomputes_activation": True}
_RECENT: Possible = ((0.3, {}), (0.3, _LIGHT), (0.4, {**_LIGHT, "recompute": "selective"}))
"""Since Hopper: nothing is recomputed, the activation function of a gated MLP is, or norms are as well (DeepSeek-V3
report 2024, section 3.2.3; the modules of Megatron-Core). Recipes call all of these no recomputation."""
_COMPRESSED: Habit = {**_LIGHT, "recompute": "selective", "has_8_bit_experts": True, "optimizer_bytes": 8}
_COMPRESSED["has_expandable_segments"] = True
_RECENT_EXPERTS: Possible = ((0.1, {}), (0.1, _LIGHT), (0.8, _COMPRESSED))
"""The same for experts in 8 bits: inputs of experts in 8 bits, moments of Adam in bf16 (DeepSeek-V3 report 2024,
sections 3.3.2 and 3.3.3)."""
_COPYING: Habit = {"copies_logits": True}
_SHARDED: Possible = ((0.3, _COPYING), (0.3, {**_COPYING, **_LIGHT}), (0.4, {**_LIGHT, "recompute": "selective"}))
"""The same for FSDP: torch's cross entropy copies the logits (torchtitan), others do not (Megatron-Bridge)."""
_OFFLOADED: Habit = {**_LIGHT, "recompute": "selective", "offloads_activations": True}
_GRACE_SHARDED: Possible = ((0.2, _COPYING), (0.2, _LIGHT), (0.6, _OFFLOADED))
"""FSDP beside a Grace processor: its recipes offload activations over NVLink-C2C (Megatron-Bridge, Llama 3 70B)."""


_RELEASE = re.compile(r"(\d\d\.\d\d)(?:\.\d+)? NeMo Container|ngc(\d\d\.\d\d)_nemo|Megatron-Core r(\d+\.\d+)")
_NAMELESS = ("", "command")
"""Families of jobs that say nothing about the code base: none, and a program of a user."""


def code_base(*texts: str) -> CodeBase | None:
    """Return the code base that a text names, the first text first; None if none does."""
    for text in texts:
        lowered = text.lower()
        for entry in CODE_BASES:
            if any(word in lowered for word in entry.words):
                return entry
    return None


def release_of(text: str) -> str:
    """Return the release that a text names, without the number of its patch; "" if it names none.

    NVIDIA's containers ("26.04.01 NeMo Container", "ngc25.01_nemo"), versions of Megatron-Core ("Megatron-Core r0.8").
    """
    found = _RELEASE.search(text)
    return (found[1] or found[2] or found[3]) if found else ""


def with_code_base(job: Job, name: CodeBaseName, release: str = "") -> Job:
    """Return a job with the habits of a code base, except for optimizer states that the job states."""
    habit = next(entry.habit for entry in CODE_BASES if entry.name == name)
    if job.optimizer_bytes is not None:
        habit = {**habit, "optimizer_bytes": job.optimizer_bytes}
    return replace(job, family=name, code_base=name, release=release, **habit)


def possible_jobs(job: Job, gpu: str) -> list[tuple[float, Job]]:
    """Return what a job may be in memory with the probability of each: several if its code base is not named.

    A model without a gated MLP has fused norms and small vocabularies in every code base that was measured.
    """
    return [(weight, replace(job, **habit) if habit else job) for weight, habit in _possible(job, gpu)]


def possible_job(job: Job, gpu: str, index: int | None) -> Job:
    """Return what a job may be by the index of `possible_jobs`, the last one beyond their number; None: as stated."""
    if index is None:
        return job
    options = _possible(job, gpu)
    habit = options[min(index, len(options) - 1)][1]
    return replace(job, **habit) if habit else job


def is_open(job: Job) -> bool:
    """Return whether nothing says which of the code bases, that differ for such a model, trains a job."""
    return job.family in _NAMELESS and job.model.is_gated and job.value_bytes != 4


def _possible(job: Job, gpu: str) -> Possible:
    if not is_open(job):
        return _NAMED
    if job.has_fused_norms is False:
        return _EAGER
    return _recent_options(job, gpu) if is_recent_device(gpu) else _UNNAMED


def timed_job(job: Job, gpu: str) -> Job:
    """Return a job with the kernels and the loss of its most likely code base, for the time of its iteration."""
    likely = max(_possible(job, gpu), key=lambda option: option[0])[1]
    fuses = likely.get("fuses_pointwise", job.fuses_pointwise)
    gathers = likely.get("gathers_logits", job.gathers_logits)
    if (fuses, gathers) == (job.fuses_pointwise, job.gathers_logits):
        return job
    return replace(job, fuses_pointwise=fuses, gathers_logits=gathers)


def _recent_options(job: Job, gpu: str) -> Possible:
    """Return the habits since Hopper; of those of a job that states heavier recomputation, what that leaves.

    What else a code base stores does not depend on what it recomputes. The recomputation of norms is for fused
    attention: with plain attention the same word means the scores.
    """
    if job.effective_zero == 3:
        options = _GRACE_SHARDED if gpu.startswith(("GB", "GH")) else _SHARDED
    else:
        options = _RECENT_EXPERTS if job.model.num_experts > 1 and job.is_low_precision else _RECENT
    if job.has_flash_attention and job.recompute in ("none", "selective"):
        return options
    return [(weight, _without_recompute(habit)) for weight, habit in options]


def _without_recompute(habit: Habit) -> Habit:
    kept: Habit = {**habit}
    kept.pop("recompute", None)
    return kept
