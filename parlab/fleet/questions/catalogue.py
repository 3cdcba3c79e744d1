"""Questions about a cluster. Each is a short form that becomes a configuration and a sweep."""

from __future__ import annotations

from typing import Any

from parlab.fleet.questions.form import CountsField, ModelQuestion, Question, choice, whole
from runners.config.engines import ALLREDUCE, CAPACITY, MEGATRON, PIPELINE, ZERO


class LargestModel(ModelQuestion):
    """The largest number of layers at a given hidden size."""

    heading = "What is the largest model that trains on one node?"
    description = (
        "Runs a few steps with 1, 2, 4, ... layers until a trial is out of memory, then bisects. The answer is the"
        " largest number of layers and parameters, with the trials on both sides of the limit."
    )
    model_fields = ("hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
    places = {"capacity.engine": "engine", "parallel.data_parallel_size": "gpus", "cluster.gpus_per_node": "gpus"}

    gpus = whole("GPUs or processes", "Ranks of each trial. The engine splits the model across them.", 1)
    engine = choice(
        "Engine",
        "pipeline splits the layers into stages; zero shards the training state across ranks.",
        PIPELINE.name,
        ZERO.name,
    )
    at_most = whole("At most (layers)", "Upper limit of the search.", 64)
    field_order = ["hidden_size", "gpus", "pool", "device", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        cleaned = self.cleaned_data
        gpus, is_zero = cleaned["gpus"], cleaned["engine"] == ZERO.name
        size = "data_parallel_size" if is_zero else "pipeline_parallel_size"
        return {
            "model": self.model(num_layers=gpus),
            "train": _short(gpus, cleaned["precision"]),
            "parallel": {"engine": CAPACITY.name, size: gpus, "zero_stage": 3 if is_zero else 0},
            "capacity": {"find": "num_layers", "engine": cleaned["engine"], "at_most": cleaned["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        cleaned = self.cleaned_data
        ranks = f"{cleaned['gpus']} {'rank' if cleaned['gpus'] == 1 else 'ranks'}"
        return f"Largest model of hidden size {cleaned['hidden_size']} on {ranks} of {cleaned['pool']}"


class FewestNodes(ModelQuestion):
    """The smallest number of ranks, and therefore nodes, for a given model."""

    heading = "How few nodes does a model need?"
    description = (
        "Runs a few steps of the model on 1, 2, 4, ... ranks until it fits, then bisects. The answer is the smallest"
        " number of ranks, and the number of nodes for them."
    )
    model_fields = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
    places = {"capacity.engine": "engine"}

    num_layers = whole("Layers", "Transformer layers of the model.", 8)
    engine = choice(
        "Engine",
        "zero shards the training state across ranks; pipeline splits the layers into stages.",
        ZERO.name,
        PIPELINE.name,
    )
    at_most = whole("At most (ranks)", "Upper limit of the search.", 4)
    field_order = ["num_layers", "hidden_size", "pool", "device", "at_most", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        cleaned = self.cleaned_data
        is_zero = cleaned["engine"] == ZERO.name
        return {
            "model": self.model(),
            "train": _short(_common_multiple(cleaned["at_most"]), cleaned["precision"]),
            "parallel": {"engine": CAPACITY.name, "zero_stage": 3 if is_zero else 0},
            "capacity": {"find": "processes", "engine": cleaned["engine"], "at_most": cleaned["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        cleaned = self.cleaned_data
        size = f"{cleaned['num_layers']} layers of hidden size {cleaned['hidden_size']}"
        return f"Fewest nodes for {size} on {cleaned['pool']}"


class LargestBatch(ModelQuestion):
    """The largest micro batch, in sequences."""

    heading = "What is the largest micro batch that fits?"
    description = (
        "Runs a few steps with micro batches of 1, 2, 4, ... sequences until a trial is out of memory, then bisects."
        " The answer is the largest micro batch, with the throughput of each trial."
    )
    model_fields = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")

    num_layers = whole("Layers", "Transformer layers of the model.", 4)
    at_most = whole("At most (sequences)", "Upper limit of the search.", 256)
    field_order = ["num_layers", "hidden_size", "pool", "device", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        cleaned = self.cleaned_data
        return {
            "model": self.model(),
            "train": _short(1, cleaned["precision"]),
            "parallel": {"engine": CAPACITY.name},
            "capacity": {"find": "micro_batch_size", "at_most": cleaned["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        cleaned = self.cleaned_data
        size = f"{cleaned['num_layers']} layers of hidden size {cleaned['hidden_size']}"
        return f"Largest micro batch of {size} on {cleaned['pool']}"


class Throughput(ModelQuestion):
    """Tokens per second for different numbers of ranks."""

    heading = "How many tokens per second does training reach?"
    description = (
        "Runs engine megatron once for each number of ranks, with the same global batch. The answer is the highest"
        " throughput, with tokens/s, time per sample, memory, utilisation and phases of each run."
    )
    model_fields = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
    places = {
        "parallel.data_parallel_size": "ranks",
        "train.global_batch_size": "global_batch_size",
        "parallel.tensor_parallel_size": "tensor_parallel_size",
        "parallel.pipeline_parallel_size": "pipeline_parallel_size",
    }

    kind = choice("Architecture", "gpt (decoder) or bert (encoder).", "gpt", "bert")
    num_layers = whole("Layers", "Transformer layers of the model.", 4)
    ranks = CountsField(label="GPUs or processes", help_text="One run per number, for example 1, 2, 4.", initial="1, 2")
    tensor_parallel_size = whole("Tensor parallel", "Ranks across which each layer is split (TP).", 1)
    pipeline_parallel_size = whole(
        "Pipeline parallel", "Pipeline stages (PP). The remaining ranks are data parallel.", 1
    )
    global_batch_size = whole("Global batch (sequences)", "Sequences per iteration over all ranks.", 16)
    micro_batch_size = whole("Micro batch (sequences)", "Sequences per forward pass.", 4)
    iterations = whole("Iterations", "Steps of each run. The first one is warm-up.", 10)
    field_order = ["kind", "num_layers", "hidden_size", "ranks", "pool", "device"]

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        share = (cleaned.get("tensor_parallel_size") or 1) * (cleaned.get("pipeline_parallel_size") or 1)
        indivisible = [count for count in cleaned.get("ranks", []) if count % share]
        if indivisible:
            message = f"TP x PP = {share} does not divide {indivisible[0]} ranks; use multiples of {share}"
            self.add_error("ranks", message)
        if (cleaned.get("iterations") or 2) < 2:
            self.add_error("iterations", "the first iteration is warm-up; use at least 2")
        return super().clean()

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        cleaned = self.cleaned_data
        mask = "bidirectional" if cleaned["kind"] == "bert" else "causal"
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        batch = ("global_batch_size", "micro_batch_size", "iterations", "precision")
        return {
            "model": self.model(kind=cleaned["kind"], attention_mask=mask),
            "train": {name: cleaned[name] for name in batch} | {"warmup_steps": 1},
            "parallel": {"engine": MEGATRON.name} | {name: cleaned[name] for name in sizes},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def sweep(self) -> dict[str, list[Any]]:
        cleaned = self.cleaned_data
        share = cleaned["tensor_parallel_size"] * cleaned["pipeline_parallel_size"]
        return {"parallel.data_parallel_size": [count // share for count in cleaned["ranks"]]}

    def title(self) -> str:
        cleaned = self.cleaned_data
        model = f"{cleaned['kind']} of {cleaned['num_layers']} layers of hidden size {cleaned['hidden_size']}"
        return f"Throughput of a {model} on {cleaned['pool']}"


class Bandwidth(Question):
    """Collective operations over a range of message sizes."""

    heading = "What all-reduce bandwidth do the ranks have?"
    description = (
        "Runs engine allreduce once for each number of ranks, with messages from small to large. The first trial is"
        " reported separately. The answer is the highest bus bandwidth, as defined by nccl-tests."
    )
    places = {"collectives.min_bytes": "min_bytes", "parallel.data_parallel_size": "ranks"}

    ranks = CountsField(label="GPUs or processes", help_text="One run per number, for example 2, 4.", initial="2")
    operation = choice(
        "Operation",
        "all measures every operation.",
        "all-reduce", "all-gather", "reduce-scatter", "point-to-point", "all",
    )  # fmt: skip
    min_bytes = whole("Smallest message (B)", "At least 4 bytes per rank.", 1024)
    max_bytes = whole("Largest message (B)", "At most 1 GiB.", 2**24)
    trials = whole("Trials", "Trials per message size. The first one is reported separately.", 10)
    field_order = ["ranks", "operation", "pool", "device"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        cleaned = self.cleaned_data
        return {
            "train": {"iterations": max(cleaned["trials"], 2), "warmup_steps": 1},
            "parallel": {"engine": ALLREDUCE.name, "data_parallel_size": cleaned["ranks"][0]},
            "collectives": {name: cleaned[name] for name in ("operation", "min_bytes", "max_bytes")},
            "cluster": self.cluster(),
        }

    def sweep(self) -> dict[str, list[Any]]:
        return {"parallel.data_parallel_size": self.cleaned_data["ranks"]}

    def title(self) -> str:
        cleaned = self.cleaned_data
        return f"Bandwidth of {cleaned['operation']} on {cleaned['pool']}"


def _short(batch: int, precision: str) -> dict[str, Any]:
    """Return the shortest training that reaches peak memory: the first step allocates the optimizer state."""
    return {
        "global_batch_size": batch,
        "micro_batch_size": 1,
        "iterations": 2,
        "warmup_steps": 1,
        "precision": precision,
    }


def _common_multiple(limit: int) -> int:
    """Return a batch that (nearly) every number of ranks up to a limit divides; the engine skips the others."""
    exact = next((batch for most, batch in ((1, 1), (2, 2), (4, 12), (6, 60), (8, 840)) if limit <= most), None)
    return exact or 120 * -(-limit // 120)


QUESTIONS: dict[str, type[Question]] = {
    "largest-model": LargestModel,
    "fewest-nodes": FewestNodes,
    "throughput": Throughput,
    "bandwidth": Bandwidth,
    "largest-batch": LargestBatch,
}
"""URL key -> question."""
