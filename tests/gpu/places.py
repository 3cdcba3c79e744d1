"""Where a test runs: on the first GPU if there is one, and its twin on the CPU."""

from __future__ import annotations

import pytest
import torch

NO_GPU = f"torch {torch.__version__} finds no GPU here; run tests/gpu where there is one"
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)])
CPU = pytest.param("cpu", marks=pytest.mark.slow)
BOTH = [CPU, GPU]
