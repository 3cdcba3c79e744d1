"""SQLite databases of MLflow (`mlflow.db`) and of trackio (one database per project).

A database is copied, with its write-ahead log, before it is opened: opening one in place could write to it. Only plain
tables are read, since a view of an uploaded database could compute without end.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .foreign import MAX_TEXT, STATUSES, ForeignRun, Store, flattened, identity_of, milliseconds, point

MARK = b"SQLite format 3\x00"
_MLFLOW = {"experiments", "runs", "metrics", "params", "tags"}
_TRACKIO = {"metrics", "configs"}
_IN_RUN = re.compile(r"^(?:.*/)?(?P<run>[0-9a-f]{32})/artifacts/(?P<path>.+)$")


def read(files: Mapping[str, Path]) -> Iterator[Store]:
    """Yield one store per database of MLflow or trackio; other databases are left alone."""
    for name, path in sorted(files.items()):
        if not _is_database(path):
            continue
        companions = {suffix: files[name + suffix] for suffix in ("-wal",) if name + suffix in files}
        owned = frozenset(other for other in files if other in (name, f"{name}-wal", f"{name}-shm"))
        try:
            with opened(path, companions) as database:
                tables = tables_of(database)
                runs: list[ForeignRun] = []
                if set(tables) >= _MLFLOW:
                    runs = _mlflow_runs(database, path, companions, _artifacts(files))
                    yield Store(_label(name), "mlflow", runs, owned | _artifact_names(files, runs))
                elif set(tables) >= _TRACKIO and "run_name" in tables["metrics"]:
                    runs = _trackio_runs(database, path, companions, Path(name).stem, tables)
                    yield Store(_label(name), "trackio", runs, owned)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            raise Refused(f"{_label(name)} is a damaged SQLite database ({problem}); copy it again") from problem


def _label(name: str) -> str:
    return name.rpartition("/")[2]


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK


@contextmanager
def opened(path: Path, companions: Mapping[str, Path]) -> Iterator[sqlite3.Connection]:
    with TemporaryDirectory(prefix="parlab-store-") as directory:
        copy = Path(directory) / "store.db"
        shutil.copyfile(path, copy)
        for suffix, companion in companions.items():
            shutil.copyfile(companion, f"{copy}{suffix}")
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            database.execute("PRAGMA trusted_schema=OFF")
            database.execute("PRAGMA query_only=ON")
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            yield database


@contextmanager
def _undamaged() -> Iterator[None]:
    """Refuse a database whose points are damaged; they are read when its runs are known already."""
    try:
        yield
    except sqlite3.DatabaseError as problem:
        raise Refused(f"the points of a damaged SQLite database cannot be read ({problem}); copy it again") from problem


def tables_of(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the columns of each plain table."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: {str(row[1]) for row in database.execute("SELECT * FROM pragma_table_info(?)", (name,))} for name in names
    } | {}


# --- MLflow ----------------------------------------------------------------------------------------------------------


def _mlflow_runs(
    database: sqlite3.Connection, path: Path, companions: Mapping[str, Path], artifacts: Mapping[str, dict[str, Path]]
) -> list[ForeignRun]:
    parameters, tags = _pairs(database, "params"), _pairs(database, "tags")
    query = (
        "SELECT r.run_uuid, r.name, r.user_id, r.status, r.start_time, r.end_time, e.name FROM runs r"
        " LEFT JOIN experiments e ON e.experiment_id = r.experiment_id WHERE r.lifecycle_stage != 'deleted'"
        " ORDER BY r.start_time, r.run_uuid"
    )
    runs = []
    for run_id, name, user_name, status, start, end, experiment in database.execute(query):
        own_tags = tags.get(run_id, {})
        runs.append(
            ForeignRun(
                identity=str(run_id)[:64],
                experiment=str(experiment or "MLflow"),
                name=str(name or own_tags.get("mlflow.runName", "")),
                user_name=str(user_name or ""),
                status=status if status in STATUSES else "FINISHED",
                start_ms=milliseconds(start),
                end_ms=milliseconds(end),
                parameters=parameters.get(run_id, {}),
                tags=own_tags,
                points=partial(_mlflow_points, path, companions, run_id),
                artifacts=artifacts.get(run_id, {}),
            )
        )
    return runs


def _pairs(database: sqlite3.Connection, table: str) -> dict[str, dict[str, str]]:
    pairs: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, key, value in database.execute(f"SELECT run_uuid, key, value FROM {table}"):
        pairs[run_id][str(key)] = str(value)[:MAX_TEXT]
    return pairs


def _mlflow_points(path: Path, companions: Mapping[str, Path], run_id: str) -> Iterator[Point]:
    query = "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    with _undamaged(), opened(path, companions) as database:
        for key, value, time_ms, step, is_nan in database.execute(query, (run_id,)):
            logged = point(str(key), "NaN" if is_nan else _unbounded(value), time_ms or 0, step or 0)
            if logged is not None:
                yield logged


def _unbounded(value: Any) -> Any:
    # MLflow stores an infinity as the largest number of the type.
    return value if not isinstance(value, float) or abs(value) < 1.7976931348623157e308 else value * 2


def _artifacts(files: Mapping[str, Path]) -> dict[str, dict[str, Path]]:
    """Return the artifacts beside the database: any folder `RUN/artifacts/`, whatever the database calls it."""
    artifacts: dict[str, dict[str, Path]] = defaultdict(dict)
    for name, path in files.items():
        if (match := _IN_RUN.match(name)) is not None:
            artifacts[match["run"]][match["path"]] = path
    return artifacts


def _artifact_names(files: Mapping[str, Path], runs: list[ForeignRun]) -> frozenset[str]:
    identities = {run.identity for run in runs}
    return frozenset(name for name in files if (match := _IN_RUN.match(name)) and match["run"] in identities)


# --- trackio ---------------------------------------------------------------------------------------------------------


def _trackio_runs(
    database: sqlite3.Connection,
    path: Path,
    companions: Mapping[str, Path],
    project: str,
    tables: Mapping[str, set[str]],
) -> list[ForeignRun]:
    """Return the runs of a project; trackio stores no end, so that each run counts as finished."""
    column = "run_id" if "run_id" in tables["metrics"] else "run_name"  # versions before 0.20 have no run_id
    configs_column = "run_id" if "run_id" in tables["configs"] else "run_name"
    configs = {
        key: _object(config) for key, config in database.execute(f"SELECT {configs_column}, config FROM configs")
    }
    query = f"SELECT {column}, max(run_name), min(timestamp), max(timestamp) FROM metrics GROUP BY 1 ORDER BY min(id)"
    runs = []
    for key, name, first, last in database.execute(query):
        config = configs.get(key, {})
        runs.append(
            ForeignRun(
                identity=identity_of("trackio", project, str(key)),
                experiment=project,
                name=str(name),
                user_name=str(config.get("_Username") or ""),
                status="FINISHED",
                start_ms=_iso_ms(first),
                end_ms=_iso_ms(last),
                parameters=flattened({name: value for name, value in config.items() if not name.startswith("_")}),
                tags={"trackio.run_id": str(key)}
                | ({"trackio.group": str(group)} if (group := config.get("_Group")) else {}),
                points=partial(_trackio_points, path, companions, column, key),
                artifacts={},
            )
        )
    return runs


def _trackio_points(path: Path, companions: Mapping[str, Path], column: str, key: str) -> Iterator[Point]:
    query = f"SELECT timestamp, step, metrics FROM metrics WHERE {column} = ? ORDER BY id"
    with _undamaged(), opened(path, companions) as database:
        for timestamp, step, metrics in database.execute(query, (key,)):
            for name, value in _object(metrics).items():
                logged = point(name, value, _iso_ms(timestamp) or 0, step)
                if logged is not None:
                    yield logged


def _object(content: Any) -> dict[str, Any]:
    try:
        value = orjson.loads(content)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


def _iso_ms(text: Any) -> int | None:
    try:
        return milliseconds(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
