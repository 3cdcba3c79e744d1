"""Hugging Face's Trainer with default settings as a data parallel baseline. See docs/understand/engines.md.

Run `python -m runners.engines.hf --config config.json` alone or under torchrun.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset, SequentialSampler

from runners.config import ConfigError, Problem, RunConfig
from runners.engines.checkpoints.session import Checkpoints, NoCheckpoints, charged, open_checkpoints
from runners.engines.checkpoints.trainer_format import TrainerFormat
from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.rank import Rank, start
from runners.engines.process.timers import StepTimes, Timers
from runners.engines.training.data import make_arguments
from runners.engines.training.networks import NO_LABEL, hugging_face_model, import_transformers, labels_at


class SyntheticText(Dataset[dict[str, torch.Tensor]]):
    """The sequences of all steps in order; each batch is drawn when its first sequence is requested."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._step = 0
        self._batch: tuple[torch.Tensor, ...] = ()

    def __len__(self) -> int:
        return self._config.train.global_batch_size * self._config.train.iterations

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        step, row = divmod(index, self._config.train.global_batch_size)
        if self._step != step + 1:
            self._step = step + 1
            self._batch = make_arguments(self._config, self._step)
        tokens, targets, *bert_inputs = (part[row] for part in self._batch)
        if bert_inputs:
            segments, positions, next_sentence = bert_inputs
            labels = labels_at(tokens, positions, targets)
            pair = {"token_type_ids": segments, "next_sentence_label": next_sentence}
            return {"input_ids": tokens, "labels": labels, **pair}
        # Hugging Face's models shift labels themselves. No position predicts the first token; if it kept its label, the
        # Trainer would count it and divide the sum of the losses by one token too many per sequence.
        labels = tokens.clone()
        labels[0] = NO_LABEL
        return {"input_ids": tokens, "labels": labels}


class Watch:
    """Measures each step of a Trainer and prints its event; called by the Trainer's callbacks."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._timers = Timers(rank.device)
        self.memory = memory_meter(rank.device)
        self._times: StepTimes | None = None
        self._sizes = (0, 0)
        self._step = 0
        self._recorder = StepRecorder(rank.config, rank.place.rank, rank.device)
        self.checkpoints: Checkpoints | NoCheckpoints = NoCheckpoints(rank.config.train.iterations)
        self.seconds: list[float] = []

    def begin_after(self, step: int) -> None:
        """Continue the numbers of an earlier attempt."""
        self._step = step

    def begin(self) -> None:
        """Start the clock of a step after a barrier; its batch has been drawn."""
        self._rank.phase = "forward"
        self._step += 1
        self._recorder.begin(self._step)
        self.memory.begin_step()
        barrier(self._rank.device)
        self._timers.begin_step()

    def finish(self) -> None:
        """Stop the clock; the optimizer has finished."""
        self._times = self._timers.finish_step()
        self._recorder.end(self._step)
        self._sizes = self.memory.now(), self.memory.peak()
        self._times = charged(self._times, self.checkpoints.after(self._step))

    def emit_step(self, step: int, loss: float) -> None:
        """Print the event of a step when the Trainer has computed its loss."""
        if self._times is None:
            return  # the Trainer's summary at the end of training
        train, times = self._rank.config.train, self._times
        self.seconds.append(times.step_time_s)
        self._times = None
        self._rank.printer.emit(
            "step",
            step=step,
            warmup=self._rank.is_warmup(step),
            step_time_s=round(times.step_time_s, 9),
            samples=train.global_batch_size,
            tokens=train.global_batch_size * self._rank.config.model.sequence_length,
            loss=loss,
            memory_bytes=self._sizes[0],
            memory_peak_bytes=self._sizes[1],
            **({"timers_s": times.timers_s} if times.timers_s else {}),
        )
        self.checkpoints.end_if_warned(step)


def make_trainer(rank: Rank, watch: Watch, directory: str, format: TrainerFormat) -> Any:
    """Return the Trainer for a configuration; raise ConfigError if transformers or accelerate is missing."""
    config, train = rank.config, rank.config.train
    transformers: Any = import_transformers(config)
    try:
        importlib.import_module("accelerate")
    except ImportError as error:
        message = f"engine hf requires accelerate, but importing it failed: {error}; pip install 'parlab[node]'"
        raise ConfigError(
            [Problem("parallel.engine", "hf", f"{message} on the node, or use another engine")]
        ) from error

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        """Forwards the Trainer's callbacks to the watch."""

        def on_train_begin(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            watch.begin_after(state.global_step)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.finish()

        def on_log(self, _arguments: Any, state: Any, _control: Any, logs: dict[str, Any], **__: Any) -> None:
            if "loss" in logs:
                watch.emit_step(state.global_step, float(logs["loss"]))

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        """A Trainer that reads sequences in the order of the steps, as the other engines do."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def _get_output_dir(self, *arguments: Any, **named: Any) -> str:
            return format.directory or str(super()._get_output_dir(*arguments, **named))

    arguments = transformers.TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=config.num_micro_batches,
        max_steps=train.iterations,
        learning_rate=train.learning_rate,
        lr_scheduler_type="constant",
        optim="sgd" if train.optimizer == "sgd" else "adamw_torch",
        weight_decay=0.01 if train.optimizer == "adamw" else 0.0,
        max_grad_norm=0.0,
        bf16=train.precision == "bf16",
        fp16=train.precision == "fp16",
        gradient_checkpointing=train.recompute == "full",
        use_cpu=rank.device.type == "cpu",
        ddp_backend=None if rank.backend == "none" else rank.backend,
        seed=train.seed,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    # One process trains on one GPU; by default the Trainer uses all visible ones and multiplies the batch accordingly.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    model = hugging_face_model(config)
    if config.model.kind == "bert":
        # The model accepts the token count of a step but ignores it, so the Trainer must divide by the micro batches.
        vars(model)["accepts_loss_kwargs"] = False
    return InOrder(model=model, args=arguments, train_dataset=SyntheticText(config), callbacks=[Callback()])


def run(rank: Rank) -> None:
    """Train all iterations and print events in addition to the Trainer's own lines."""
    rank.choose_device()
    if rank.config.train.precision == "fp16" and rank.device.type == "cpu":
        message = "Hugging Face's Trainer does not support fp16 on a CPU; use bf16 or fp32, or a node with GPUs"
        raise ConfigError([Problem("train.precision", "fp16", message)])
    os.environ["HF_HUB_OFFLINE"] = "1"  # models are created from their sizes; nothing needs to be downloaded
    rank.join()
    watch = Watch(rank)
    with tempfile.TemporaryDirectory(prefix="parlab-hf-") as directory:
        format = TrainerFormat(rank.config)
        format.trainer = trainer = make_trainer(rank, watch, directory, format)
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        layers = [0, rank.config.model.num_layers - 1]
        rank.emit_start("hf", watch.memory.source, parameters=parameters, stage=0, layers=layers)
        watch.checkpoints = open_checkpoints(rank, lambda: format)
        if watch.checkpoints.done < watch.checkpoints.last:
            trainer.train(resume_from_checkpoint=format.resume_from)
        watch.checkpoints.finish()
    rank.emit_end(watch.seconds)
    barrier(rank.device)
    leave()


if __name__ == "__main__":
    start("hf", run)
