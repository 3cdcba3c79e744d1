"""The format of engine hf: that of Hugging Face's Trainer, which also loads it by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from runners.config import RunConfig
from runners.engines.checkpoints.folder import Checkpoint


class TrainerFormat:
    """What the Trainer stores; `directory` is where it writes next."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.trainer: Any = None
        """Set once the Trainer exists."""
        self.directory: str | None = None
        self.resume_from: str | None = None
        """Argument of `Trainer.train`: the checkpoint that it continues from."""

    def facts(self) -> dict[str, Any]:
        train = self._config.train
        return {"format": "transformers", "data": {"seed": train.seed, "global_batch_size": train.global_batch_size}}

    def write(self, directory: Path, group: dist.ProcessGroup | None) -> Callable[[], None]:
        """Write at once: the Trainer copies nothing that a thread could write later."""
        self.directory = str(directory)
        try:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
        finally:
            self.directory = None
        return lambda: None

    def read(self, checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> None:
        self.resume_from = str(checkpoint.path / f"checkpoint-{checkpoint.step}")
