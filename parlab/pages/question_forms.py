"""Questions that teams ask of a cluster, each as a short form that becomes a configuration and its sweep."""

from __future__ import annotations

from typing import Any

from runners.config.engines import ALLREDUCE, CAPACITY, MEGATRON, PIPELINE, ZERO

from .question import CountsField, ModelQuestion, Question, choice, whole


class LargestModel(ModelQuestion):
    """Layers at a given width."""

    heading = "What is the largest model that trains on one node?"
    description = (
        "Short real runs with 1, 2, 4, ... layers until one is out of memory, then between the two. The answer is the"
        " number of layers and of parameters, with the run on both sides of the border."
    )
    model_fields = ("hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
    places = {"capacity.engine": "engine", "parallel.data_parallel_size": "gpus", "cluster.gpus_per_node": "gpus"}

    gpus = whole("GPUs or processes", "Ranks of each trial; they share the model as the engine does.", 1)
    engine = choice(
        "Engine", "pipeline splits layers into stages, zero shares states between ranks.", PIPELINE.name, ZERO.name
    )
    at_most = whole("At most (layers)", "The search tries no more.", 64)
    field_order = ["hidden_size", "gpus", "pool", "device", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        given = self.cleaned_data
        gpus, is_zero = given["gpus"], given["engine"] == ZERO.name
        size = "data_parallel_size" if is_zero else "pipeline_parallel_size"
        return {
            "model": self.model(num_layers=gpus),
            "train": _short(gpus, given["precision"]),
            "parallel": {"engine": CAPACITY.name, size: gpus, "zero_stage": 3 if is_zero else 0},
            "capacity": {"find": "num_layers", "engine": given["engine"], "at_most": given["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        given = self.cleaned_data
        ranks = f"{given['gpus']} {'rank' if given['gpus'] == 1 else 'ranks'}"
        return f"Largest model of width {given['hidden_size']} on {ranks} of {given['pool']}"


class FewestNodes(ModelQuestion):
    """Ranks, and with them nodes, for a given model."""

    heading = "How few nodes does a model need?"
    description = (
        "Short real runs of the model over 1, 2, 4, ... ranks until it fits, then between the two. The answer is the"
        " fewest ranks, and the nodes that they fill."
    )
    model_fields = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")
    places = {"capacity.engine": "engine"}

    num_layers = whole("Layers", "Transformer layers of the model.", 8)
    engine = choice(
        "Engine", "zero shares states between ranks, pipeline splits layers into stages.", ZERO.name, PIPELINE.name
    )
    at_most = whole("At most (ranks)", "The search tries no more.", 4)
    field_order = ["num_layers", "hidden_size", "pool", "device", "at_most", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        given = self.cleaned_data
        is_zero = given["engine"] == ZERO.name
        return {
            "model": self.model(),
            "train": _short(_common_multiple(given["at_most"]), given["precision"]),
            "parallel": {"engine": CAPACITY.name, "zero_stage": 3 if is_zero else 0},
            "capacity": {"find": "processes", "engine": given["engine"], "at_most": given["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        given = self.cleaned_data
        return f"Fewest nodes for {given['num_layers']} layers of width {given['hidden_size']} on {given['pool']}"


class LargestBatch(ModelQuestion):
    """Sequences in a micro batch."""

    heading = "What is the largest micro batch that fits?"
    description = (
        "Short real runs with micro batches of 1, 2, 4, ... sequences until one is out of memory, then between the"
        " two. The answer is the largest micro batch, and how fast each one was."
    )
    model_fields = ("num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size")

    num_layers = whole("Layers", "Transformer layers of the model.", 4)
    at_most = whole("At most (sequences)", "The search tries no more.", 256)
    field_order = ["num_layers", "hidden_size", "pool", "device", "memory_limit_mib"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        given = self.cleaned_data
        return {
            "model": self.model(),
            "train": _short(1, given["precision"]),
            "parallel": {"engine": CAPACITY.name},
            "capacity": {"find": "micro_batch_size", "at_most": given["at_most"]},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def title(self) -> str:
        given = self.cleaned_data
        return f"Largest micro batch of {given['num_layers']} layers of width {given['hidden_size']} on {given['pool']}"


class Throughput(ModelQuestion):
    """Tokens per second over numbers of ranks."""

    heading = "How many tokens per second does training reach?"
    description = (
        "One run of engine megatron for each number of ranks, with the same global batch. The answer is the fastest,"
        " with tokens/s, time per sample, memory, utilisation and phases of every run beside each other."
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
    ranks = CountsField(label="GPUs or processes", help_text="One run for each number, like 1, 2, 4.", initial="1, 2")
    tensor_parallel_size = whole("Tensor parallel", "Ranks that share each layer (TP).", 1)
    pipeline_parallel_size = whole("Pipeline parallel", "Stages (PP); the rest of the ranks is data parallel.", 1)
    global_batch_size = whole("Global batch (sequences)", "Sequences of an iteration, over all ranks.", 16)
    micro_batch_size = whole("Micro batch (sequences)", "Sequences of one forward pass.", 4)
    iterations = whole("Iterations", "Steps of each run; the first is warm-up.", 10)
    field_order = ["kind", "num_layers", "hidden_size", "ranks", "pool", "device"]

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        share = (given.get("tensor_parallel_size") or 1) * (given.get("pipeline_parallel_size") or 1)
        odd = [count for count in given.get("ranks", []) if count % share]
        if odd:
            message = f"TP x PP = {share} does not divide {odd[0]} ranks; use multiples of {share}"
            self.add_error("ranks", message)
        if (given.get("iterations") or 2) < 2:
            self.add_error("iterations", "one iteration leaves nothing beside the warm-up; use at least 2")
        return super().clean()

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        given = self.cleaned_data
        mask = "bidirectional" if given["kind"] == "bert" else "causal"
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        batch = ("global_batch_size", "micro_batch_size", "iterations", "precision")
        return {
            "model": self.model(kind=given["kind"], attention_mask=mask),
            "train": {name: given[name] for name in batch} | {"warmup_steps": 1},
            "parallel": {"engine": MEGATRON.name} | {name: given[name] for name in sizes},
            "cluster": self.cluster(),
            "launcher": self.launcher(),
        }

    def sweep(self) -> dict[str, list[Any]]:
        given = self.cleaned_data
        share = given["tensor_parallel_size"] * given["pipeline_parallel_size"]
        return {"parallel.data_parallel_size": [count // share for count in given["ranks"]]}

    def title(self) -> str:
        given = self.cleaned_data
        model = f"{given['kind']} of {given['num_layers']} layers of width {given['hidden_size']}"
        return f"Throughput of a {model} on {given['pool']}"


class Bandwidth(Question):
    """Collective operations over message sizes."""

    heading = "What all-reduce bandwidth do the ranks have?"
    description = (
        "One run of engine allreduce for each number of ranks: messages from small to large, the first trial apart."
        " The answer is the highest bus bandwidth, as nccl-tests define it."
    )
    places = {"collectives.min_bytes": "min_bytes", "parallel.data_parallel_size": "ranks"}

    ranks = CountsField(label="GPUs or processes", help_text="One run for each number, like 2, 4.", initial="2")
    operation = choice(
        "Operation",
        "all takes one after the other.",
        "all-reduce", "all-gather", "reduce-scatter", "point-to-point", "all",
    )  # fmt: skip
    min_bytes = whole("Smallest message (B)", "At least 4 bytes for each rank.", 1024)
    max_bytes = whole("Largest message (B)", "At most 1 GiB.", 2**24)
    trials = whole("Trials", "Of each size; the first one is apart.", 10)
    field_order = ["ranks", "operation", "pool", "device"]

    def data_of_config(self) -> dict[str, dict[str, Any]]:
        given = self.cleaned_data
        return {
            "train": {"iterations": max(given["trials"], 2), "warmup_steps": 1},
            "parallel": {"engine": ALLREDUCE.name, "data_parallel_size": given["ranks"][0]},
            "collectives": {name: given[name] for name in ("operation", "min_bytes", "max_bytes")},
            "cluster": self.cluster(),
        }

    def sweep(self) -> dict[str, list[Any]]:
        return {"parallel.data_parallel_size": self.cleaned_data["ranks"]}

    def title(self) -> str:
        given = self.cleaned_data
        return f"Bandwidth of {given['operation']} on {given['pool']}"


def _short(batch: int, precision: str) -> dict[str, Any]:
    """A trial as short as one that shows its peak of memory: the optimizer's state is there after the first step."""
    return {
        "global_batch_size": batch,
        "micro_batch_size": 1,
        "iterations": 2,
        "warmup_steps": 1,
        "precision": precision,
    }


def _common_multiple(limit: int) -> int:
    """A batch that (nearly) every number of ranks up to a limit divides; the engine leaves out those that do not."""
    exact = next((batch for most, batch in ((1, 1), (2, 2), (4, 12), (6, 60), (8, 840)) if limit <= most), None)
    return exact or 120 * -(-limit // 120)


QUESTIONS: dict[str, type[Question]] = {
    "largest-model": LargestModel,
    "fewest-nodes": FewestNodes,
    "throughput": Throughput,
    "bandwidth": Bandwidth,
    "largest-batch": LargestBatch,
}
"""Key in the address -> question."""
