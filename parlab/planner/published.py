"""Files of published measurements: read their rows, calibrate on others, predict each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import rows
from .calibration import Calibration, Observation, calibrate, default_for
from .prediction import Prediction, predict_job

_GIB = 1 << 30
_FEWEST_OF_CODE = 6
"""Rows of one code base within a group that are worth a calibration of their own."""


_NO_ROW = "not a row"
"""Key of what stands where a row should be, so that the others still get their answer."""


def load(text: str) -> list[Mapping[str, Any]]:
    """Rows of a file: {"rows": [...]}, a list, or one object a line. Raises ValueError for anything else.

    Flat rows (`gpus`, `gbs`, `tp` at the top, GPU and recompute said once for the file) get the same shape.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as whole:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            raise ValueError(f"the file is no JSON: {whole}; use a list of rows, or an object with rows") from whole
    about: Mapping[str, Any] = data if isinstance(data, dict) else {}
    found = data.get("rows", [data]) if isinstance(data, dict) else data
    if not isinstance(found, list):
        raise ValueError("rows is no list; use one object for each row")
    return [_nested(row, about) if isinstance(row, dict) else {_NO_ROW: row} for row in found]


def _nested(row: Mapping[str, Any], about: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tp" not in row or "parallel" in row:
        return row
    return {
        "id": row.get("id"),
        "group": row.get("group") or str(row.get("id", "")).rpartition("-")[0],
        "model": {"vocab": None}
        | {name: row[name] for name in ("layers", "hidden", "heads", "seq", "vocab") if name in row},
        "parallel": {"recompute": about.get("recompute"), "schedule": "1F1B"}
        | {name: row[name] for name in ("tp", "pp", "dp", "mbs", "gbs", "recompute") if name in row},
        "hardware": {"gpu": row.get("gpu") or str(about.get("gpu") or "A100").split()[0], "count": row.get("gpus")},
        "measured": {"iter_s": row.get("iter_s")},
    }


def cluster_keys(row: rows.Row) -> list[tuple[str, ...]]:
    """What a row has in common with others, the closest first: group and code, group, cluster and code, device.

    Rows of other groups are foreign: on the same device two code bases differ more than one of them does from the
    shipped constants. Those count that name the same code, or ran on the same shaped links, and those of the same
    device for a row that names no group.
    """
    device, family = row.cluster.device.name, row.job.family
    nodes = f"{row.cluster.gpus_per_node} per node"
    links = "shaped links" if row.cluster.between.is_measured else ""
    keys: list[tuple[str, ...]] = []
    if row.group:
        keys.append(("group", row.group, family, f"ZeRO-{row.job.zero_stage}", row.job.precision))
        keys.append(("group", row.group))
    if family or links or not row.group:
        keys.append(("cluster", device, nodes, family, links))
    return keys if row.group else [*keys, ("device", device)]


class Calibrations:
    """Calibrations of measured rows by group, cluster and device, each made when it is first asked for."""

    def __init__(self, measured: Iterable[rows.Row]) -> None:
        self._rows: dict[tuple[str, ...], list[rows.Row]] = {}
        self._made: dict[tuple[str, ...], tuple[Calibration, bool]] = {}
        for row in measured:
            # A row that names no group asks for the last two keys of those that do.
            for key in {*cluster_keys(row), *cluster_keys(replace(row, group=""))}:
                self._rows.setdefault(key, []).append(row)

    def of(self, row: rows.Row) -> tuple[rows.Row, Calibration]:
        """The calibration of the rows that are closest to this one, the default where there are none.

        Where the precision is open, times tell it: the row comes back in the precision that explains its neighbours.
        """
        for key in cluster_keys(row):
            fewest = _FEWEST_OF_CODE if key[0] == "group" and len(key) > 2 else 1
            if len(self._rows.get(key, [])) >= fewest:
                if key not in self._made:
                    self._made[key] = _best(self._rows[key], " ".join(filter(None, key)))
                calibration, is_16_bit = self._made[key]
                return (in_fp16(row) if is_16_bit and row.is_precision_open else row), calibration
        return row, default_for(row.cluster)


def in_fp16(row: rows.Row) -> rows.Row:
    """The same row, trained in fp16."""
    return replace(row, job=replace(row.job, precision="fp16"))


def _best(found: Sequence[rows.Row], name: str) -> tuple[Calibration, bool]:
    calibration = calibrate(_distinct(found), name)
    if not any(row.is_precision_open for row in found):
        return calibration, False
    other = calibrate(_distinct(in_fp16(row) if row.is_precision_open else row for row in found), name)
    return (other, True) if other.cost < calibration.cost else (calibration, False)


def _distinct(found: Iterable[rows.Row]) -> list[Observation]:
    """Their observations; the same one twice is no second measurement."""
    return list(dict.fromkeys(map(observation, found)))


def observation(row: rows.Row) -> Observation:
    """A row as something measured; printed GB are GiB, as drivers and DeepSpeed print them."""
    memory = row.measured.memory_gb
    return Observation(
        row.job, row.cluster, row.measured.iteration_s, memory * _GIB if memory else None, row.measured.is_oom
    )


def read_measured(found: Iterable[Mapping[str, Any]]) -> list[rows.Row]:
    """The rows that can be read and were measured; others cannot teach anything."""
    read = []
    for row in found:
        try:
            one = rows.read(row)
        except (ValueError, TypeError):
            continue
        if one.measured.iteration_s or one.measured.memory_gb or one.measured.is_oom:
            read.append(one)
    return read


def predict_row(row: rows.Row, calibration: Calibration) -> Prediction:
    """Predict a row; where its precision is open, it fits only if it fits in fp32 too."""
    prediction = predict_job(row.job, row.cluster, calibration)
    if prediction.fits and row.is_precision_open:
        wide = predict_job(replace(row.job, precision="fp32"), row.cluster, calibration)
        return replace(prediction, fits=wide.fits, reasons=[*prediction.reasons, *wide.reasons])
    return prediction


def predict_rows(
    found: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]] = ()
) -> Iterable[dict[str, Any]]:
    """One prediction for each row, in order; a row that cannot be predicted says why in its basis."""
    calibrations = Calibrations(read_measured(measured))
    for data in found:
        try:
            if _NO_ROW in data:
                raise ValueError(
                    f"row {str(data[_NO_ROW])[:40]!r} is no object; use one with model, parallel, hardware"
                )
            row = rows.read(data)
            prediction = predict_row(*calibrations.of(row))
        except (ValueError, TypeError) as error:
            yield _line(data, None, None, None, None, f"not predicted: {error}")
            continue
        yield _line(
            data,
            prediction.iteration_s,
            rows.tflops_per_gpu(row.job, prediction.iteration_s),
            prediction.memory_bytes / _GIB,
            prediction.fits,
            "; ".join([prediction.basis, *prediction.reasons, *row.notes]),
        )


def _line(
    row: Mapping[str, Any],
    seconds: float | None,
    tflops: float | None,
    memory: float | None,
    fits: bool | None,
    basis: str,
) -> dict[str, Any]:
    name = row.get("id")
    return {
        "id": name if name is None or isinstance(name, str | int) else str(name),
        "iter_s": seconds,
        "tflops_per_gpu": tflops,
        "memory_gb": memory,
        "fits": fits,
        "basis": basis,
    }
