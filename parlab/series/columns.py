"""Points of one series as three columns: packed for the database, thinned out for a figure. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, standalone
from tsdownsample import NaNMinMaxLTTBDownsampler

# Higher levels take up to three times as long and save 3 % on what training prints.
_PACKING = ChunkConfig(compression_level=4)
_DOWNSAMPLER = NaNMinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Points of a series in the order of printing: steps int64, times float64 (unix s), values float64."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.times) == len(self.values):
            raise ValueError(
                f"columns have {len(self.steps)} steps, {len(self.times)} times and {len(self.values)} values;"
                " give every point all three"
            )

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Any) -> "Columns":
        """Select points by a numpy index, mask or slice."""
        return Columns(self.steps[index], self.times[index], self.values[index])

    @classmethod
    def joined(cls, parts: Iterable["Columns"]) -> "Columns":
        """Put pieces of one series behind each other; no pieces make an empty series."""
        pieces = list(parts)
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            np.concatenate([np.empty(0, np.int64), *(piece.steps for piece in pieces)]),
            np.concatenate([np.empty(0, np.float64), *(piece.times for piece in pieces)]),
            np.concatenate([np.empty(0, np.float64), *(piece.values for piece in pieces)]),
        )

    def thinned(self, max_points: int) -> "Columns":
        """Choose at most max_points of the points so that a line through them looks the same (MinMaxLTTB).

        First and last point stay; a NaN or infinity stays visible as a gap. Raises ValueError for less
        than 2 points. Source: Van Der Donckt et al. 2023, MinMaxLTTB (tsdownsample).
        """
        if max_points < 2:
            raise ValueError(f"max_points {max_points} cannot keep the first and the last point; use 2 or more")
        if len(self) <= max_points:
            return self
        if max_points == 2:
            return self.take([0, -1])
        shown = np.where(np.isfinite(self.values), self.values, np.nan)
        # Steps may go back where a training started again; only the printed order is always ascending.
        chosen = np.unique(_DOWNSAMPLER.downsample(shown, n_out=max_points))
        chosen[0], chosen[-1] = 0, len(self) - 1
        return self.take(chosen)


def pack(column: NDArray[Any]) -> bytes:
    """Compress a column of int64 or float64, bit for bit."""
    return bytes(standalone.simple_compress(np.ascontiguousarray(column), _PACKING))


def unpack(packed: bytes | memoryview) -> NDArray[Any]:
    """Undo `pack`; the column has the type it had."""
    return np.asarray(standalone.simple_decompress(bytes(packed)))
