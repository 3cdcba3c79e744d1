"""Runs in the stores of other trackers: MLflow's file and SQLite stores, W&B offline directories, trackio databases.

A reader gets the files of a directory or archive, {relative path: file}, and opens no other file: paths written inside
of a store are never followed. It returns a `Store` with the runs and the files that it answers for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import databases, mlflow_files, wandb_files
from .foreign import ForeignRun, Store, StoreError

__all__ = ["READERS", "ForeignRun", "Store", "StoreError", "is_store_file", "stores_in"]

READERS = (mlflow_files, databases, wandb_files)
_MARKS = (databases.MARK, wandb_files.MARK)


def stores_in(files: Mapping[str, Path]) -> list[Store]:
    """Return the stores among the files of a directory. Raises StoreError for one that is damaged."""
    return [store for reader in READERS for store in reader.read(files)]


def is_store_file(head: bytes) -> bool:
    """Return whether the first bytes of a single file are those of a store."""
    return head.startswith(_MARKS)
