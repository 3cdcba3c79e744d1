"""The format of engine hf: that of Hugging Face's Trainer, which also loads it by itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runners.config import RunConfig
from runners.engines.checkpoints.folder import Checkpoint
from runners.engines.checkpoints.host_copies import HostCopies


class TrainerFormat:
    """What the Trainer stores; `directory` is where it writes next."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.trainer: Any = None
        """Set once the Trainer exists."""
        self.directory: str | None = None
        self.resume_from: str | None = None
        """Argument of `Trainer.train`: the checkpoint that it continues from."""
        self._copies = HostCopies()

    def facts(self) -> dict[str, Any]:
        train = self._config.train
        return {"format": "transformers", "data": {"seed": train.seed, "global_batch_size": train.global_batch_size}}

    def write(self, directory: Path, group: dist.ProcessGroup | None) -> Callable[[], None]:
        """Copy what the Trainer would write: it has no asynchronous save."""
        self.directory = str(directory)
        self._copies.begin()
        weights = import_module("transformers.modeling_utils")
        try:
            with self._copies.instead_of(torch, "save"), self._copies.instead_of(weights, "safe_save_file"):
                self.trainer._save_checkpoint(self.trainer.model, trial=None)
        finally:
            self.directory = None
        return self._copies.write

    def read(self, checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> None:
        self.resume_from = str(checkpoint.path / f"checkpoint-{checkpoint.step}")
