"""Series of a server, and rows as frames of polars or pandas."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from parlab.client.http import Connection

_LIBRARIES = ("polars", "pandas")


class Series:
    """The points of one metric of a run; they are read when they are asked for."""

    def __init__(self, connection: Connection, path: str, metric: str) -> None:
        self._connection, self._path, self.metric = connection, path, metric

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns rank, step, time (Unix seconds) and value."""
        rows = csv.reader(io.StringIO(self.csv().decode()))
        names = next(rows)
        values = list(zip(*rows)) or [()] * len(names)
        kinds = (int, int, float, float)
        return {name: [kind(text) for text in column] for name, column, kind in zip(names, values, kinds)}

    def csv(self) -> bytes:
        """Return the points as CSV."""
        return self._connection.request("GET", f"{self._path}&as=csv")[0]

    def arrow(self) -> bytes:
        """Return the points as an Arrow IPC stream."""
        return self._connection.request("GET", f"{self._path}&as=arrow")[0]

    def frame(self, library: str | None = None) -> Any:
        """Return the points as a frame of polars or pandas with the columns rank, step, time and value."""
        module = frames(library)
        if module.__name__ == "polars":
            return module.read_ipc_stream(io.BytesIO(self.arrow()))
        types = {"rank": "int32", "step": "int64", "time": "float64", "value": "float64"}
        # Its reader of CSV rounds floats differently from version to version.
        return module.DataFrame(self.columns()).astype(types)


def frames(library: str | None = None) -> Any:
    """Import polars or pandas, whichever is named or else installed."""
    if library is not None and library not in _LIBRARIES:
        raise ValueError(f"library {library!r} has no frames; use polars or pandas")
    for name in (library,) if library else _LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ImportError(f"frames need {library or 'polars or pandas'}: pip install {library or 'polars'}")


def frame(rows: Sequence[Mapping[str, Any]], library: str | None = None) -> Any:
    """Return rows as a frame; values that are no scalars become JSON."""
    module = frames(library)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_scalar(row.get(name)) for row in rows] for name in names}
    return module.DataFrame(columns, strict=False) if module.__name__ == "polars" else module.DataFrame(columns)


def _scalar(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value
