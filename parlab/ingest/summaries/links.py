"""Measurements of the links of a run before its ranks start: series -> summary."""

import re
from collections.abc import Mapping
from typing import Any

from parlab.series.columns import Columns

PREFIX = "link/"
"""Series are named link/<target>/<number>; their rank is the source. Both are ranks, or nodes if several."""
NUMBERS = {"round_trip_s": "round_trip_s", "measured_bits_per_s": "bits_per_s"}
"""Field of a `link` event -> its name in series and summary."""
_NAME = re.compile(PREFIX + r"(\d{1,6})/(\w+)")
_LARGEST = 1e18


def links_of(series: Mapping[str, Mapping[int, Columns]]) -> list[dict[str, Any]]:
    """Return the measured links, by source and target: {"source", "target", "round_trip_s", "bits_per_s"}.

    Numbers that were not measured are absent.
    """
    links: dict[tuple[int, int], dict[str, Any]] = {}
    for metric, by_rank in series.items():
        match = _NAME.fullmatch(metric)
        if match is None or match[2] not in NUMBERS.values():
            continue
        for source, columns in by_rank.items():
            value = float(columns.values[-1])
            if 0 < value < _LARGEST:
                target = int(match[1])
                links.setdefault((source, target), {"source": source, "target": target})[match[2]] = value
    return [links[link] for link in sorted(links)]
