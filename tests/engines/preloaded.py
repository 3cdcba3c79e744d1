"""What the ranks of all engines import: once, in the server that forks them."""

import deepspeed  # noqa: F401
import transformers  # noqa: F401

from runners.engines import hf, megatron, pipeline, zero  # noqa: F401
from runners.engines.checkpoints import torch_format  # noqa: F401
