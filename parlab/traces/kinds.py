"""What a kernel or operation does, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2
KINDS = ("compute", "communication", "memory copy")

CLASSES = (
    ("communication", re.compile(r"nccl|rccl|gloo:|c10d::|oneccl|mscclpp|nvshmem", re.I)),
    ("memory copy", re.compile(r"^(memcpy|memset)|aten::copy_|Memcpy|Memset", re.I)),
    (
        "attention",
        re.compile(r"flash|fmha|attention|scaled_dot_product|cudnn_generated_fort_native_sdpa|mem_eff", re.I),
    ),
    (
        "matrix product",
        re.compile(r"gemm|cutlass|cublas|nvjet|xmma|wgmma|s16816|aten::(mm|addmm|bmm|baddbmm|matmul|linear)\b", re.I),
    ),
    ("convolution", re.compile(r"conv|winograd|implicit_gemm", re.I)),
    ("norm", re.compile(r"norm", re.I)),
    ("softmax and loss", re.compile(r"softmax|cross_entropy|nll_loss", re.I)),
    ("optimizer", re.compile(r"adam|multi_tensor|optimizer|sgd", re.I)),
    ("embedding and index", re.compile(r"embedding|index|gather|scatter", re.I)),
    ("reduction", re.compile(r"reduce", re.I)),
    ("pointwise", re.compile(r"elementwise|vectorized|pointwise|triton|aten::", re.I)),
)
"""Class of a kernel -> sign in its name; the first match counts."""
OTHER = "other"
PRODUCTS = ("matrix product", "attention", "convolution")
"""Classes whose FLOPs count as those of the model."""
NO_COMPUTE = ("communication", "memory copy")


@lru_cache(maxsize=65_536)
def class_of(name: str) -> str:
    """Return the class of a kernel or operation."""
    return next((title for title, sign in CLASSES if sign.search(name)), OTHER)


@lru_cache(maxsize=65_536)
def kind_of(name: str, category: str) -> int:
    """Return COMPUTE, COMMUNICATION or MEMORY."""
    if category in ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset") or name.startswith(("Memcpy ", "Memset ")):
        return MEMORY
    return COMMUNICATION if class_of(name) == "communication" else COMPUTE
