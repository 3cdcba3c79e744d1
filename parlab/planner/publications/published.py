"""Read files of published measurements, calibrate on measured rows and predict each row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parlab.planner.calibration.calibration import Calibration, Observation, calibrate, default_for
from parlab.planner.calibration.coverage import warnings
from parlab.planner.prediction.fitting import LIKELY
from parlab.planner.prediction.prediction import Prediction, predict_job

from . import rows

_GIB = 1 << 30
_FEWEST_PER_CODE = 6
"""Smallest number of rows of one code base in a group that get a calibration of their own."""
_INVALID_ROW = "not a row"
"""Key under which `load` keeps an entry that is not an object; `predict_rows` reports it and goes on."""


def load(text: str) -> list[Mapping[str, Any]]:
    """Read the rows of a file: {"rows": [...]}, a list, or one object per line. Raises ValueError for anything else.

    Flat rows (`gpus`, `gbs`, `tp` at the top level, GPU and recomputation once per file) are converted to nested ones.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise ValueError(f"invalid JSON: {error}; use a list of rows, or an object with rows") from error
    header: Mapping[str, Any] = data if isinstance(data, dict) else {}
    entries = data.get("rows", [data]) if isinstance(data, dict) else data
    if not isinstance(entries, list):
        raise ValueError("rows is not a list; use a list with one object per row")
    return [_nested(entry, header) if isinstance(entry, dict) else {_INVALID_ROW: entry} for entry in entries]


def _nested(row: Mapping[str, Any], header: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tp" not in row or "parallel" in row:
        return row
    return {
        "id": row.get("id"),
        "group": row.get("group") or str(row.get("id", "")).rpartition("-")[0],
        "model": {"vocab": None}
        | {name: row[name] for name in ("layers", "hidden", "heads", "seq", "vocab") if name in row},
        "parallel": {"recompute": header.get("recompute"), "schedule": "1F1B"}
        | {name: row[name] for name in ("tp", "pp", "dp", "mbs", "gbs", "recompute") if name in row},
        "hardware": {"gpu": row.get("gpu") or str(header.get("gpu") or "A100").split()[0], "count": row.get("gpus")},
        "measured": {"iter_s": row.get("iter_s")},
    }


def cluster_keys(row: rows.Row) -> list[tuple[str, ...]]:
    """Return the keys under which a row matches measured rows, closest first.

    These are group and code base, group, cluster and code base, device.
    Rows of other groups match only with the same code base or on the same shaped links, since on one device two code
    bases differ more from each other than from the shipped constants. A row without a group also matches rows of the
    same device.
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
    """Calibrations of measured rows by group, cluster and device, each computed at its first use."""

    def __init__(self, measured: Iterable[rows.Row]) -> None:
        self._rows: dict[tuple[str, ...], list[rows.Row]] = {}
        self._calibrations: dict[tuple[str, ...], tuple[Calibration, bool]] = {}
        for row in measured:
            # A row without a group looks up the keys without a group, so each row is also stored under these.
            for key in {*cluster_keys(row), *cluster_keys(replace(row, group=""))}:
                self._rows.setdefault(key, []).append(row)

    def of(self, row: rows.Row) -> tuple[rows.Row, Calibration]:
        """Return the calibration on the closest rows, the default without such rows.

        If the precision of the row is unknown, the returned row has the one that explains the measured times best.
        """
        for key in cluster_keys(row):
            fewest = _FEWEST_PER_CODE if key[0] == "group" and len(key) > 2 else 1
            if len(self._rows.get(key, [])) >= fewest:
                if key not in self._calibrations:
                    self._calibrations[key] = _best(self._rows[key], " ".join(filter(None, key)))
                calibration, is_16_bit = self._calibrations[key]
                return (in_fp16(row) if is_16_bit and row.is_precision_open else row), calibration
        return row, default_for(row.cluster)


def in_fp16(row: rows.Row) -> rows.Row:
    """Return the same row with precision fp16."""
    return replace(row, job=replace(row.job, precision="fp16"))


def _best(measured: Sequence[rows.Row], name: str) -> tuple[Calibration, bool]:
    """Calibrate on rows; True if rows of unknown precision are explained better by fp16 than by fp32."""
    calibration = calibrate(_distinct(measured), name)
    if not any(row.is_precision_open for row in measured):
        return calibration, False
    in_16_bits = calibrate(_distinct(in_fp16(row) if row.is_precision_open else row for row in measured), name)
    return (in_16_bits, True) if in_16_bits.cost < calibration.cost else (calibration, False)


def _distinct(measured: Iterable[rows.Row]) -> list[Observation]:
    """Return the distinct observations of rows; a repeated row counts once."""
    return list(dict.fromkeys(map(observation, measured)))


def observation(row: rows.Row) -> Observation:
    """Return the observation of a row; printed GB are GiB, as drivers and DeepSpeed print them."""
    memory = row.measured.memory_gb
    return Observation(
        row.job,
        row.cluster,
        row.measured.iteration_s,
        memory * _GIB if memory else None,
        row.measured.is_oom,
        row.measured.is_allocated,
    )


def read_measured(data: Iterable[Mapping[str, Any]]) -> list[rows.Row]:
    """Return the rows that can be read and have a measurement; others cannot calibrate anything."""
    return [row for row, _problem in _measured(data) if row is not None]


def left_out(data: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why rows calibrate nothing, one problem for each such row, with its place and name."""
    return [problem for row, problem in _measured(data) if row is None]


def _measured(data: Iterable[Mapping[str, Any]]) -> Iterator[tuple[rows.Row | None, str]]:
    for place, item in enumerate(data, 1):
        name = f"row {place} {str(item.get('id') or '')[:40]}".rstrip()
        try:
            row = rows.read(item)
            is_measured = bool(row.measured.iteration_s or row.measured.memory_gb or row.measured.is_oom)
            yield (row, "") if is_measured else (None, f"{name}: {rows.unmeasured(item)}")
        except (ValueError, TypeError) as error:
            yield None, f"{name}: {error}"


def predict_row(row: rows.Row, calibration: Calibration) -> Prediction:
    """Predict a row.

    A row of unknown precision fits only if it also fits in fp32; one of unknown recomputation if it fits with all.
    """
    prediction = predict_job(row.job, row.cluster, calibration)
    if row.is_recompute_open and not prediction.fits:
        # Recipes that do not state it recompute or offload what does not fit; cheap operations come first.
        lighter = predict_job(replace(row.job, recompute="selective"), row.cluster, calibration)
        full = predict_job(replace(row.job, recompute="full"), row.cluster, calibration)
        assumed = "recompute is not stated: what does not fit is assumed to be recomputed or offloaded"
        return replace(
            lighter,
            fits_probability=full.fits_probability,
            reasons=[assumed] if full.fits else full.reasons,
        )
    if prediction.fits and row.is_precision_open:
        in_fp32 = predict_job(replace(row.job, precision="fp32"), row.cluster, calibration)
        return replace(
            prediction,
            fits_probability=in_fp32.fits_probability,
            reasons=[*prediction.reasons, *in_fp32.reasons],
        )
    return prediction


def predict_rows(
    data: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]] = ()
) -> Iterable[dict[str, Any]]:
    """Generate one prediction per row, in order; for a row that cannot be predicted `basis` holds the reason."""
    calibrations = Calibrations(read_measured(measured))
    for item in data:
        try:
            if _INVALID_ROW in item:
                raise ValueError(
                    f"row {str(item[_INVALID_ROW])[:40]!r} is not an object; use one with model, parallel, hardware"
                )
            row = rows.read(item)
            prediction = predict_row(*calibrations.of(row))
        except (ValueError, TypeError) as error:
            yield _line(item, None, None, None, None, f"not predicted: {error}")
            continue
        yield _line(
            item,
            prediction.iteration_s,
            rows.tflops_per_gpu(row.job, prediction.iteration_s),
            prediction.memory_bytes / _GIB,
            prediction.fits_probability,
            "; ".join([prediction.basis, *prediction.reasons, *row.notes, *warnings(row.job, row.cluster.device)]),
        )


def _line(
    row: Mapping[str, Any],
    seconds: float | None,
    tflops: float | None,
    memory: float | None,
    probability: float | None,
    basis: str,
) -> dict[str, Any]:
    name = row.get("id")
    return {
        "id": name if name is None or isinstance(name, str | int) else str(name),
        "iter_s": seconds,
        "tflops_per_gpu": tflops,
        "memory_gb": memory,
        "fits": None if probability is None else probability >= LIKELY,
        "fits_probability": probability,
        "basis": basis,
    }
