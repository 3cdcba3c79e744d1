"""Logs and pages of other trainers, made up for tests."""

from __future__ import annotations

import io
import zipfile

MEGATRON_HEAD = """\
------------------------ arguments ------------------------
  fp16 ............................................ True
  global_batch_size ............................... 8
  hidden_size ..................................... 512
  micro_batch_size ................................ 2
  num_attention_heads ............................. 8
  num_layers ...................................... 6
  pipeline_model_parallel_size .................... 2
  seq_length ...................................... 128
  tensor_model_parallel_size ...................... 1
  data_parallel_size .............................. {data}
  train_iters ..................................... {total}
  world_size ...................................... {world}
-------------------- end of arguments ---------------------
"""


def megatron(steps: int, *, total: int | None = None, data: int = 2, seconds: float = 0.5, end: str = "") -> bytes:
    """One launch: its first step takes three times as long as the others."""
    total = total or steps
    lines = [MEGATRON_HEAD.format(data=data, world=2 * data, total=total)]
    for step in range(1, steps + 1):
        elapsed = 1000 * seconds * (3 if step == 1 else 1)
        lines.append(
            f" iteration {step:8d}/{total:8d} | consumed samples: {step * 8:12d} |"
            f" elapsed time per iteration (ms): {elapsed:.1f} | global batch size:     8 |"
            f" lm loss: {8 + 2 / step:.6E} | number of skipped iterations:   0 |\n"
            f"time (ms) | forward-compute: {elapsed / 4:.2f} | backward-compute: {elapsed / 2:.2f} | optimizer: 0.00\n"
        )
    return ("".join(lines) + end).encode()


SCHEDULES = """\
# Tiny GPT on two machines

We compare two schedules. A batch of 9 was tried and given up.

- number of layer: 8
- sequence length: 128

    python dist_pipeline_runner.py --dist-url tcp://10.0.0.1:9000 --world-size 2 --batch-size 16 --num-iters 10 \
--embedding-dim 64 --num-layers 4 --rank 0 --mode gpipe --micro-batch-size 2

### GPipe

| Network | Micro batch size: 1 | Micro batch size: 2 |
|---------|---------------------|---------------------|
| fast    | 2.00 s              | 1.60 s              |
| slow    | 4.00 s              | OOM                 |

### 1F1B

| Network | Micro batch size: 1 | Micro batch size: 2 |
|---------|---------------------|---------------------|
| fast    | 1.90 s              | 1.50 s              |
| slow    | -                   | crashed             |

### ZeRO-2 data parallel

- Fail due to running out of memory:
  - not even one sample fits.

![the cluster](figures/cluster.png)
"""

# 32 GPUs x 100 TFLOP/s are 3,200, so the last column is in another unit than it says.
SCALING = """\
Scaling
=======

.. table:: Weak scaling

   ===== ==== == == == ========= ============ =============
   Model GPUs TP PP DP Global BS TFLOPs / GPU TFLOPs aggreg
   ===== ==== == == == ========= ============ =============
   1B    32   1  1  32 512       100          3.2
   4B    64   2  1  32 512       110          7.04
   9B    128  4  1  32 512       120          15.36
   ===== ==== == == == ========= ============ =============

.. image:: plot.png
"""

SECTIONS = """\
# Two machines

## One GPU

{one}
GPU util: ~80%
GPU mem: 1000MiB - 1500MiB / 40537MiB

(over 100 iterations = 800 samples)
50 ms per sample

time (ms) | forward-compute: 100.00 | backward-compute: 250.00 | optimizer: 20.00

## Two GPUs

{two}
(over 100 iterations = 80 samples)
25 ms per sample
"""


def sections() -> bytes:
    """A page with two launches; the second one says a tenth of its samples."""
    one, two = (MEGATRON_HEAD.format(data=data, world=2 * data, total=100) for data in (1, 2))
    return SECTIONS.format(one=one, two=two).encode()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()
