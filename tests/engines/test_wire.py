"""8-bit transfers: message size, precision, and error feedback."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.config import check
from runners.engines.training.transfer_precision import EightBitWire, Wire

CPU = torch.device("cpu")


def transferred(wire: EightBitWire, tensor: torch.Tensor) -> torch.Tensor:
    message, buffer = wire.encode(tensor), wire.buffer(CPU)
    assert message.shape == buffer.shape
    assert message.dtype == buffer.dtype == torch.uint8
    buffer.copy_(message)
    return wire.decode(buffer)


def test_a_message_has_one_byte_per_number_and_one_scale_per_row() -> None:
    assert EightBitWire((2, 3, 64), torch.float32).buffer(CPU).numel() == 2 * 3 * (64 + 4)
    assert Wire((2, 3, 64), torch.bfloat16, torch.float32).buffer(CPU).nbytes == 2 * 3 * 64 * 2


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_a_number_is_off_by_at_most_half_a_step_of_its_row(seed: int, size: float) -> None:
    tensor = size * torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(seed))
    off = (transferred(EightBitWire((2, 3, 17), torch.float32), tensor) - tensor).abs()
    step = tensor.abs().amax(-1, keepdim=True) / 127
    assert bool((off <= 0.5001 * step).all())


def test_rounding_errors_are_added_to_the_next_message() -> None:
    wire, generator = EightBitWire((4, 32), torch.float32), torch.Generator().manual_seed(1)
    sent = [torch.randn(4, 32, generator=generator) for _ in range(50)]
    received = [transferred(wire, tensor) for tensor in sent]
    off = (torch.stack(received).sum(0) - torch.stack(sent).sum(0)).abs()
    alone = torch.stack([transferred(EightBitWire((4, 32), torch.float32), tensor) for tensor in sent]).sum(0)
    assert float(off.max()) <= 0.6 * 4.5 / 127  # one message's rounding, not fifty
    assert float((alone - torch.stack(sent).sum(0)).abs().max()) > float(off.max())


def test_zeros_stay_zeros_and_non_finite_numbers_do_not_enter_the_feedback() -> None:
    wire = EightBitWire((1, 4), torch.float32)
    assert transferred(wire, torch.zeros(1, 4)).tolist() == [[0, 0, 0, 0]]
    transferred(wire, torch.tensor([[float("nan"), float("inf"), 1.0, 2.0]]))
    assert bool(torch.isfinite(transferred(wire, torch.ones(1, 4))).all())


def test_chunks_of_one_rank_do_not_mix_their_errors() -> None:
    parallel = {"schedule": "interleaved-1f1b", "virtual_stages": 2, "pipeline_parallel_size": 2}
    _, problems = check({"parallel": {**parallel, "wire_precision": "int8"}})
    assert [problem.field for problem in problems] == ["parallel.wire_precision"]
