"""Random numbers that depend on their purpose only, not on the rank or on numbers drawn before."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """Return a CPU generator for one purpose, such as ("layer", 3) or ("tokens", step).

    The arguments are hashed, because torch's CPU generator uses only 32 bits of its seed: seeds that differ in the
    upper half would draw the same numbers.
    """
    name = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(name[:4], "little"))
