"""Let a library copy what it would write to files, so that a thread writes it while the training goes on."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor


class HostCopies:
    """The files of one checkpoint, in memory of the CPU that the next checkpoint uses again."""

    def __init__(self) -> None:
        self._writes: list[Callable[[], Any]] = []
        self._memory: list[Tensor] = []
        self._used = 0

    @contextmanager
    def instead_of(self, owner: Any, name: str) -> Iterator[None]:
        """Let calls of a function that writes its first argument to a file copy this argument alone."""
        function = getattr(owner, name)
        signature = inspect.signature(function)

        def taken(*arguments: Any, **named: Any) -> None:
            bound = signature.bind(*arguments, **named)
            state = next(iter(bound.arguments))
            # Only a mapping has tensors that the next step changes.
            if not isinstance(bound.arguments[state], Mapping):
                function(*bound.args, **bound.kwargs)
                return
            bound.arguments[state] = self._copied(bound.arguments[state])
            self._writes.append(partial(function, *bound.args, **bound.kwargs))

        with replaced(owner, name, taken):
            yield

    def begin(self) -> None:
        """Forget the last checkpoint, which is written."""
        self._writes, self._used = [], 0

    def write(self) -> None:
        """Write the files; called by a thread."""
        for write in self._writes:
            write()
        self._writes = []

    def _copied(self, state: Any) -> Any:
        memo: dict[int, Any] = {}
        by_place: dict[Any, Tensor] = {}
        for tensor in _tensors(state):
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if place not in by_place:  # tied weights stay one tensor
                by_place[place] = self._on_host(tensor)
            memo[id(tensor)] = by_place[place]
        return copy.deepcopy(state, memo)

    def _on_host(self, tensor: Tensor) -> Tensor:
        source = tensor.detach()
        if self._used == len(self._memory) or not _is_alike(self._memory[self._used], source):
            self._memory[self._used : self._used + 1] = [torch.empty_like(source, device="cpu")]
        target = self._memory[self._used]
        self._used += 1
        return target.copy_(source)


@contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a module, or a method of an object."""
    before = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _is_alike(memory: Tensor, tensor: Tensor) -> bool:
    return (memory.dtype, memory.shape, memory.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
