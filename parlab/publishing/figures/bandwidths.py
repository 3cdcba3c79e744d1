"""Bandwidths stated in imported files: tables of nccl-tests, trials of all_reduce_bench. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from parlab.charts.sweeps.bandwidth import Message

FORMATS = ("nccl-tests", "all-reduce-bench")
GIGA, MICRO, GIGABIT = 1e9, 1e-6, 1e9 / 8
_OPERATIONS = {
    "all_reduce_perf": "all-reduce",
    "all_gather_perf": "all-gather",
    "reduce_scatter_perf": "reduce-scatter",
    "sendrecv_perf": "point-to-point",
    "alltoall_perf": "all-to-all",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
    "all_reduce": "all-reduce",
}


def messages_of(document: Mapping[str, Any], name: str) -> list[Message]:
    """Read the messages of a document (formats.schema.Document as JSON)."""
    if document.get("format") == "nccl-tests":
        return [message for table in document.get("tables") or [] for message in _perf(table, document, name)]
    messages = [_average(segment, name) for segment in document.get("segments") or []]
    messages += [_trials(table, document, name) for table in document.get("tables") or []]
    return [message for message in messages if message is not None]


def _perf(table: Mapping[str, Any], document: Mapping[str, Any], name: str) -> list[Message]:
    """Read a table of nccl-tests, out of place if it has both variants."""
    columns = {str(column).removeprefix("out-of-place "): at for at, column in enumerate(table["columns"])}
    if not {"size (B)", "algbw (GB/s)"} <= columns.keys():
        return []
    derived = _derived_ranks(document, int(table["line"]))
    # Ranks can be derived only from an all-reduce, whose busbw exceeds its algbw.
    test = str(table.get("title") or ("all_reduce_perf" if derived else "unnamed collective"))
    operation, ranks = _OPERATIONS.get(test, test), _launched_ranks(document, int(table["line"])) or derived

    def number(row: Sequence[Mapping[str, Any]], column: str, factor: float = 1.0) -> float | None:
        value = row[columns[column]].get("value") if column in columns else None
        return None if value is None else float(value) * factor

    def text(row: Sequence[Mapping[str, Any]], column: str) -> str:
        return str(row[columns[column]].get("text", "")) if column in columns else ""

    messages = []
    for row in table["rows"]:
        size, algbw = number(row, "size (B)"), number(row, "algbw (GB/s)", GIGA)
        if not size or not algbw:  # some versions also time a size of 0, which has no bandwidth
            continue
        wrong, elements = number(row, "#wrong"), number(row, "count (elements)")
        messages.append(
            Message(
                run=0,
                operation=operation,
                ranks=ranks,
                size=int(size),
                algbw=algbw,
                busbw=number(row, "busbw (GB/s)", GIGA),
                time_s=number(row, "time (us)", MICRO),
                wrong=None if wrong is None else int(wrong),
                source=name,
                elements=None if elements is None else int(elements),
                kind=text(row, "type"),
                origin="printed",
                redop=text(row, "redop"),
            )
        )
    return messages


def _launched_ranks(document: Mapping[str, Any], line: int) -> int | None:
    """Return the number of ranks of the launch that contains this line."""
    for segment in document.get("segments") or []:
        lines = segment.get("lines") or {}
        if lines.get("first", 0) <= line <= max(lines.get("last") or 0, lines.get("first", 0)):
            return (segment.get("launch") or {}).get("world_size")
    return None


def _derived_ranks(document: Mapping[str, Any], line: int) -> int | None:
    """Return the number of ranks that the reader derived from the bandwidths of a table."""
    figures = (document.get("figures") or {}).get("derived_ranks") or []
    return next((int(figure["value"]) for figure in figures if figure.get("line") == line), None)


def _average(segment: Mapping[str, Any], name: str) -> Message | None:
    """Read the averages of all_reduce_bench: one payload per segment."""
    metrics = segment.get("metrics") or {}
    size, algbw, busbw = (
        (metrics.get(metric) or {}).get("median")
        for metric in ("payload_bytes", "algbw_bytes_per_s", "busbw_bytes_per_s")
    )
    launch = segment.get("launch") or {}
    arguments = launch.get("arguments") or {}
    if not size or not algbw or "collective" not in arguments:
        return None
    operation = _OPERATIONS.get(str(arguments["collective"]), str(arguments["collective"]))
    ranks = launch.get("world_size")
    origin = metrics["algbw_bytes_per_s"].get("kind") or "printed"
    return Message(0, operation, ranks, int(size), float(algbw), busbw, source=name, origin=origin)


def _trials(table: Mapping[str, Any], document: Mapping[str, Any], name: str) -> Message | None:
    """Average the trials of all ranks, the first one separately; "algo throughput" counts both directions."""
    if table.get("title") != "trials":
        return None
    rows = [[cell.get("value") for cell in row] for row in table["rows"]]
    timed = [(int(trial), *rest) for _, trial, *rest in rows if trial is not None and None not in rest]
    later = [row for row in timed if row[0] > 1] or timed
    if not later:
        return None
    time_s, throughput, busbw = (fmean(row[column] for row in later) for column in (1, 2, 3))
    first = [row[1] for row in timed if row[0] == 1]
    algbw = throughput / 2 * GIGABIT
    ranks = next((s["launch"]["arguments"].get("ranks") for s in document["segments"] if s.get("launch")), None)
    return Message(
        0,
        "all-reduce",
        ranks,
        round(algbw * time_s),
        algbw,
        busbw * GIGABIT,
        time_s=time_s,
        first_time_s=fmean(first) if first and len(timed) > len(first) else None,
        source=name,
        origin="derived",
    )
