"""Runs in the stores of other trackers: MLflow's file and SQLite stores, W&B offline directories,
trackio databases, TensorBoard directories, Aim repositories, exports of Neptune.

A reader gets the files of a directory or archive, {relative path: file}, and opens no other file: paths written inside
of a store are never followed. It returns a `Store` with the runs and the files that it answers for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import aim, databases, mlflow_files, neptune, tensorboard, wandb_files
from .foreign import ForeignRun, Store

__all__ = ["READERS", "ForeignRun", "Store", "stores_in"]

READERS = (aim, mlflow_files, databases, neptune, wandb_files, tensorboard)


def stores_in(files: Mapping[str, Path]) -> list[Store]:
    """Return the stores among the files of a directory. Raises Refused for one that is damaged."""
    stores: list[Store] = []
    for reader in READERS:
        # What a store has as an artifact of its runs is no store of its own.
        owned = frozenset[str]().union(*(store.files for store in stores))
        stores += reader.read({name: path for name, path in files.items() if name not in owned})
    return stores
