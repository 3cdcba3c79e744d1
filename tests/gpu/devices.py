"""Parameters of tests that run on the first GPU, if there is one, and on the CPU."""

from __future__ import annotations

import pytest
import torch

NO_GPU = f"torch {torch.__version__} finds no GPU; run tests/gpu on a machine with a GPU"
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)])
CPU = pytest.param("cpu", marks=pytest.mark.slow)
BOTH = [CPU, GPU]
