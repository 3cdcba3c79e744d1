"""Random numbers that depend on what they are for, never on which rank draws them or what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """Return a CPU generator for one purpose, like ("layer", 3) or ("tokens", step).

    The numbers are hashed together because torch's CPU generator looks at 32 bits of its seed only: seeds that differ
    in the upper half would draw the same numbers.
    """
    name = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(name[:4], "little"))
