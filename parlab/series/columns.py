"""Points of one series as three columns: packed for the database, downsampled for figures. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, standalone
from tsdownsample import NaNMinMaxLTTBDownsampler

# Higher levels take up to three times as long and save only 3 % on typical series.
_PACKING = ChunkConfig(compression_level=4)
_DOWNSAMPLER = NaNMinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Points of a series in printed order: steps int64, times float64 (Unix seconds), values float64."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.times) == len(self.values):
            raise ValueError(
                f"columns have {len(self.steps)} steps, {len(self.times)} times and {len(self.values)} values;"
                " each point needs all three"
            )

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Any) -> "Columns":
        """Select points by a numpy index, mask or slice."""
        return Columns(self.steps[index], self.times[index], self.values[index])

    @classmethod
    def unpacked(cls, steps: bytes | memoryview, times: bytes | memoryview, values: bytes | memoryview) -> "Columns":
        """Return points that the database has packed."""
        return cls(unpack(steps), unpack(times), unpack(values))

    @classmethod
    def joined(cls, parts: Iterable["Columns"]) -> "Columns":
        """Concatenate pieces of one series; without pieces the series is empty."""
        pieces = list(parts)
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            np.concatenate([np.empty(0, np.int64), *(piece.steps for piece in pieces)]),
            np.concatenate([np.empty(0, np.float64), *(piece.times for piece in pieces)]),
            np.concatenate([np.empty(0, np.float64), *(piece.values for piece in pieces)]),
        )

    def thinned(self, max_points: int) -> "Columns":
        """Select at most max_points points that preserve the shape of the line (MinMaxLTTB).

        The first and last points are kept; NaN and infinities remain visible as gaps. Raises ValueError if max_points
        is less than 2. Source: Van Der Donckt et al. 2023, MinMaxLTTB (tsdownsample).
        """
        if max_points < 2:
            raise ValueError(f"max_points {max_points} cannot keep the first and the last point; use 2 or more")
        if len(self) <= max_points:
            return self
        if max_points == 2:
            return self.take([0, -1])
        finite_values = np.where(np.isfinite(self.values), self.values, np.nan)
        # Steps may go back after a restart; only the printed order is always ascending.
        selected = np.sort(_DOWNSAMPLER.downsample(finite_values, n_out=max_points))
        selected[0], selected[-1] = 0, len(self) - 1
        return self.take(selected[np.append(True, selected[1:] != selected[:-1])])


def pack(column: NDArray[Any]) -> bytes:
    """Compress a column of int64 or float64, bit for bit."""
    return bytes(standalone.simple_compress(np.ascontiguousarray(column), _PACKING))


def unpack(packed: bytes | memoryview) -> NDArray[Any]:
    """Undo `pack`; the column has its original type."""
    return np.asarray(standalone.simple_decompress(bytes(packed)))
