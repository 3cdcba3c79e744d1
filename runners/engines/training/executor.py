"""Execution of one rank's operations of a pipeline schedule: receive, compute, send.

The executor is independent of the network: its caller passes the function that runs a micro batch through a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from runners.engines.process.timers import Timers
from runners.engines.training.transfer_precision import EightBitWire, Wire
from runners.engines.training.transfers import Channel, Channels, Inbox, Key, Outbox
from runners.models.linear import WeightGradients, WeightProduct, accumulate, defer_weight_gradients
from runners.schedules import Operation, Schedule, micro_batches_in_flight


def activation_buffers(operations: Sequence[Operation], ahead: int = 1) -> int:
    """Return the number of receive buffers for activations: those in flight, and `ahead` that arrive meanwhile."""
    return micro_batches_in_flight(operations) + ahead


def gradient_buffers(operations: Sequence[Operation], ahead: int = 1) -> int:
    """Return the number of receive buffers for gradients: the one in use, and `ahead` that arrive meanwhile.

    If weight gradients are deferred, the gradients they depend on stay in use until W.
    """
    is_split = any(operation.kind == "I" for operation in operations)
    return (micro_batches_in_flight(operations) if is_split else 1) + ahead


Forward = Callable[[Operation, Tensor | None], Tensor]
"""(operation, activations or None on the first stage) -> activations, or on the last stage this micro batch's share of
the loss."""


class Boundary(NamedTuple):
    """The tensor that two neighbouring stages exchange."""

    shape: Sequence[int]
    """(micro batch, sequence, hidden)."""
    precision: torch.dtype
    """Precision of the compute on both sides."""
    wire: Literal["same", "bf16", "fp16", "int8"] = "same"

    def activations_wire(self) -> Wire:
        if self.wire == "int8":
            return EightBitWire(self.shape, self.precision)
        wire_dtype = {"same": self.precision, "bf16": torch.bfloat16, "fp16": torch.float16}[self.wire]
        return Wire(self.shape, wire_dtype, self.precision)

    def gradients_wire(self) -> Wire:
        """Return the conversion for gradients; never fp16, in which activation gradients would underflow."""
        if self.wire == "int8":
            return EightBitWire(self.shape, self.precision)
        return Wire(self.shape, self.precision if self.wire == "same" else torch.bfloat16, self.precision)


class Traffic(NamedTuple):
    """Keys of the messages that a rank receives, in the order in which its neighbours send them."""

    activations: list[Key]
    gradients: list[Key]


def traffic(plan: Schedule, rank: int, num_chunks: int) -> Traffic:
    """Derive from the neighbours' operations which messages a rank receives, in order.

    Chunk c of the last rank feeds chunk c + 1 of the first rank; gradients take the opposite direction.
    """
    last = len(plan) - 1
    before, after = plan[rank - 1], plan[rank + 1 if rank < last else 0]
    up, down = int(rank == 0), int(rank == last)
    forward = [Key(o.micro_batch, o.chunk + up) for o in before if o.kind == "F"]
    backward = [Key(o.micro_batch, o.chunk - down) for o in after if o.kind in "BI"]
    return Traffic([k for k in forward if k.chunk < num_chunks], [k for k in backward if k.chunk >= 0])


class _InFlight(NamedTuple):
    """Tensors of a forward pass that its backward pass needs."""

    x: Tensor | None
    output: Tensor


class Emulated(Protocol):
    """Passes that take time and compute nothing; each returns the tensor to send."""

    def forward(self, operation: Operation) -> Tensor: ...
    def backward(self, operation: Operation) -> Tensor: ...


class Executor:
    """Runs the operations of one rank on its chunks of layers; `phase` is the current phase."""

    def __init__(
        self,
        plan: Schedule,
        rank: int,
        chunks: Sequence[nn.Module],
        forward: Forward,
        channels: Channels,
        boundary: Boundary,
        timers: Timers,
        device: torch.device,
        emulated: Emulated | None = None,
        ahead: int = 1,
    ) -> None:
        """Preallocate receive buffers: `ahead` more than the schedule holds, so that messages arrive during compute.

        gloo and NCCL send nothing before the receiver has posted a buffer. On a slow link a single buffer ahead would
        leave the link idle while that notification travels back. With `emulated`, its passes replace all compute, and
        only the number of `chunks` matters.
        """
        self.phase = "forward"
        """"forward" or "backward"."""
        self.operations = plan[rank]
        self._forward_pass = forward
        self._emulated = emulated
        self._timers = timers
        self._device = device
        self._has_first, self._has_last = rank == 0, rank == len(plan) - 1
        self._last_chunk = len(chunks) - 1
        self._in_flight: dict[Key, _InFlight] = {}
        self._deferred: dict[Key, list[WeightProduct]] = {}
        is_split = any(operation.kind == "I" for operation in self.operations)
        self._collector: WeightGradients | None = defer_weight_gradients(nn.ModuleList(chunks)) if is_split else None
        in_flight = micro_batches_in_flight(self.operations)
        arriving = traffic(plan, rank, len(chunks))

        def inbox(channel: Channel | None, order: list[Key], wire: Wire, count: int) -> Inbox | None:
            if channel is None:
                return None
            buffers = [wire.buffer(device) for _ in range(min(count, len(order)))]
            return Inbox(channel, order, buffers, wire)

        def outbox(channel: Channel | None, wire: Wire) -> Outbox | None:
            return None if channel is None else Outbox(channel, in_flight + ahead - 1, wire, device)

        activations, gradients = boundary.activations_wire(), boundary.gradients_wire()
        self._activations_in = inbox(
            channels.activations_in, arriving.activations, activations, activation_buffers(self.operations, ahead)
        )
        self._gradients_in = inbox(
            channels.gradients_in, arriving.gradients, gradients, gradient_buffers(self.operations, ahead)
        )
        self._activations_out = outbox(channels.activations_out, activations)
        self._gradients_out = outbox(channels.gradients_out, gradients)

    def run(self) -> list[Tensor]:
        """Execute all operations; return each micro batch's share of the loss, in order; [] but on the last stage.

        Raises RuntimeError if a transfer fails or times out, and what torch raises when memory does not suffice.
        """
        for inbox in (self._activations_in, self._gradients_in):
            if inbox is not None:
                inbox.begin_step()
        losses: list[Tensor] = []
        # Disabled, but needed: autocast drops its 16-bit copies of the weights when the outermost context exits.
        # Without this context every micro batch in flight would keep its own copy of all weights.
        with torch.autocast(self._device.type, enabled=False):
            for operation in self.operations:
                if operation.kind == "F":
                    output = self._forward(operation)
                    if self._is_last(operation):
                        losses.append(output.detach())
                elif operation.kind == "W":
                    self._weights(operation)
                else:
                    self._backward(operation)
        return losses

    def finish_sends(self) -> None:
        """Wait until all sends of this rank have completed."""
        for outbox, name in ((self._activations_out, "forward-send"), (self._gradients_out, "backward-send")):
            if outbox is not None:
                with self._timers.span(name):
                    outbox.finish_step()

    def carried_errors(self) -> dict[str, Tensor]:
        """Return the rounding errors of wires with error feedback, by direction."""
        return {name: outbox.wire.carried(self._device) for name, outbox in self._feedback()}

    def carry_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Continue with rounding errors of an earlier process."""
        for name, outbox in self._feedback():
            if name in errors:
                outbox.wire.error = errors[name].to(self._device)

    def _feedback(self) -> Iterator[tuple[str, Outbox]]:
        for name, outbox in (("activations", self._activations_out), ("gradients", self._gradients_out)):
            if outbox is not None and outbox.wire.has_feedback:
                yield name, outbox

    def _is_first(self, operation: Operation) -> bool:
        return self._has_first and operation.chunk == 0

    def _is_last(self, operation: Operation) -> bool:
        return self._has_last and operation.chunk == self._last_chunk

    def _forward(self, operation: Operation) -> Tensor:
        self.phase = "forward"
        key = Key(operation.micro_batch, operation.chunk)
        x = None
        if self._activations_in is not None and not self._is_first(operation):
            with self._timers.span("forward-recv", operation.micro_batch):
                x = self._activations_in.take(key).detach().requires_grad_()
        with self._timers.span("forward-compute", operation.micro_batch):
            output = self._emulated.forward(operation) if self._emulated else self._forward_pass(operation, x)
        if self._activations_out is not None and not self._is_last(operation):
            with self._timers.span("forward-send", operation.micro_batch):
                self._activations_out.send(output.detach())
        self._in_flight[key] = _InFlight(x, output)
        return output

    def _backward(self, operation: Operation) -> None:
        """Run B, or I, which defers the weight gradients until W."""
        self.phase = "backward"
        key = Key(operation.micro_batch, operation.chunk)
        x, output = self._in_flight.pop(key)
        gradient = None
        if self._gradients_in is not None and not self._is_last(operation):
            with self._timers.span("backward-recv", operation.micro_batch):
                gradient = self._gradients_in.take(key)
        with self._timers.span("backward-compute", operation.micro_batch):
            if self._emulated is None:
                torch.autograd.backward(output, gradient)
                input_gradient = None if x is None else x.grad
            else:
                input_gradient = self._emulated.backward(operation)
        if self._collector is not None:
            self._deferred[key] = self._collector.collect()
        else:
            self._release(operation, key)
        if self._gradients_out is not None and not self._is_first(operation) and input_gradient is not None:
            with self._timers.span("backward-send", operation.micro_batch):
                self._gradients_out.send(input_gradient)

    def _weights(self, operation: Operation) -> None:
        self.phase = "backward"
        key = Key(operation.micro_batch, operation.chunk)
        with self._timers.span("backward-weight", operation.micro_batch):
            if self._emulated is not None:
                self._emulated.backward(operation)
            accumulate(self._deferred.pop(key))
        self._release(operation, key)

    def _release(self, operation: Operation, key: Key) -> None:
        if self._gradients_in is not None and not self._is_last(operation):
            self._gradients_in.release(key)
        if self._activations_in is not None and not self._is_first(operation):
            self._activations_in.release(key)
