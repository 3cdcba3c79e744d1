"""Record formulas of fitted constants once, and evaluate them for many rows and many values of the constants at once.

A fit evaluates the same formula thousands of times. Run with `Traced` constants, a formula records its operations on
them; rows with the same operations differ only in their numbers and are evaluated together as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
_Operand = tuple[str, int]
"""Kind of an operand ("constant", "number" or "step") and its index among those."""
_OPERATIONS: dict[str, Callable[..., Vector]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "larger": np.maximum,
    "smaller": np.minimum,
}


class _Record:
    """The operations of one formula and the numbers that it uses."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, _Operand, _Operand]] = []
        self.numbers: list[float] = []

    def operand(self, value: Traced | float) -> _Operand:
        if isinstance(value, Traced):
            return value.operand
        self.numbers.append(float(value))
        return "number", len(self.numbers) - 1

    def step(self, operation: str, left: Traced | float, right: Traced | float) -> Traced:
        self.steps.append((operation, self.operand(left), self.operand(right)))
        return Traced(self, ("step", len(self.steps) - 1))


class Traced:
    """A number that depends on the constants. It refuses comparisons: a formula must not branch on constants."""

    __slots__ = ("operand", "record")

    def __init__(self, record: _Record, operand: _Operand) -> None:
        self.record = record
        self.operand = operand

    def __add__(self, other: Traced | float) -> Traced:
        return self.record.step("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Traced | float) -> Traced:
        return self.record.step("subtract", self, other)

    def __rsub__(self, other: float) -> Traced:
        return self.record.step("subtract", other, self)

    def __mul__(self, other: Traced | float) -> Traced:
        return self.record.step("multiply", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Traced | float) -> Traced:
        return self.record.step("divide", self, other)

    def __rtruediv__(self, other: float) -> Traced:
        return self.record.step("divide", other, self)

    def __pow__(self, other: float) -> Traced:
        return self.record.step("power", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a formula branches on a fitted constant; use larger and smaller")

    def __lt__(self, other: object) -> bool:
        raise TypeError("a formula compares a fitted constant; use larger and smaller")

    __gt__ = __le__ = __ge__ = __lt__


def larger(first: float, second: float) -> float:
    """Return the larger of two numbers, either of which may be traced."""
    return _choice("larger", first, second) if _is_traced(first, second) else max(first, second)


def smaller(first: float, second: float) -> float:
    """Return the smaller of two numbers, either of which may be traced."""
    return _choice("smaller", first, second) if _is_traced(first, second) else min(first, second)


def _is_traced(first: object, second: object) -> bool:
    return isinstance(first, Traced) or isinstance(second, Traced)


def _choice(operation: str, first: Any, second: Any) -> Any:
    record = first.record if isinstance(first, Traced) else second.record
    return record.step(operation, first, second)


class Formula:
    """One recorded formula: its operations, and the numbers of its row."""

    def __init__(self, count: int, formula: Callable[[list[Any]], Any]) -> None:
        """Record `formula`, a function of `count` constants."""
        record = _Record()
        result = formula([Traced(record, ("constant", index)) for index in range(count)])
        self.shape = (tuple(record.steps), record.operand(result))
        self.numbers = record.numbers


class Batch:
    """Formulas of many rows, evaluated together."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        groups: dict[Any, list[int]] = {}
        for index, formula in enumerate(formulas):
            groups.setdefault(formula.shape, []).append(index)
        self._size = len(formulas)
        self._groups = [
            (shape, np.array(rows), np.array([formulas[row].numbers for row in rows]).T)
            for shape, rows in groups.items()
        ]

    def values(self, constants: Vector) -> Vector:
        """Return the results for points of constants: points x constants -> points x rows."""
        columns = [constants[:, index : index + 1] for index in range(constants.shape[1])]
        results = np.empty((len(constants), self._size))
        for (steps, last), rows, numbers in self._groups:
            computed: list[Vector] = []
            operands: dict[str, Sequence[Vector]] = {"constant": columns, "number": list(numbers), "step": computed}
            for operation, (left, left_index), (right, right_index) in steps:
                computed.append(_OPERATIONS[operation](operands[left][left_index], operands[right][right_index]))
            results[:, rows] = operands[last[0]][last[1]]
        return results
