"""The device that a text names: a GPU by its name, or a cloud instance by the type that its provider gives it."""

from __future__ import annotations

import re

from .hardware import Gpu, find

INSTANCES: dict[str, str] = {
    "p3.2xlarge": "V100 16GB",
    "p3.8xlarge": "V100 16GB",
    "p3.16xlarge": "V100 16GB",
    "p3dn.24xlarge": "V100 32GB",
    "p4d.24xlarge": "A100 40GB",
    "p4de.24xlarge": "A100 80GB",
    "p5.48xlarge": "H100",
    "p5e.48xlarge": "H200",
    "p5en.48xlarge": "H200",
    "g4dn.xlarge": "T4",
    "g6.xlarge": "L4",
    "a2-highgpu-8g": "A100 40GB",
    "a2-ultragpu-8g": "A100 80GB",
    "a3-highgpu-8g": "H100",
    "a3-megagpu-8g": "H100",
    "nd96asr_v4": "A100 40GB",
    "nd96amsr_a100_v4": "A100 80GB",
    "nd96isr_h100_v5": "H100",
    "nd40rs_v2": "V100 32GB",
}
"""Lower-case instance type -> its device, from the pages of instance types of AWS, Google Cloud and Azure, 2025."""

_LONGEST = 200_000
_SIZE = r"(?:(?:16|32|40|64|80|94|96|141|180|186|192|256|279|288) ?Gi?B)"
_NAME = r"(?:V100|A100|A800|H100|H200|H800|H20|GH200|GB200|GB300|B200|B300|L40S|L4|T4|MI2\d0X?|MI3\d\dX|TPU v5p)"
_DEVICE = re.compile(
    rf"(?<![\w.])({_SIZE} )?({_NAME})(?:s\b|\b)((?:[- ]?(?:SXM\d?|PCIe|NVL))?)((?:[- ]?\(?{_SIZE}\)?)?)"
    r"(?:\s+(?:was|were|is|are) not\b)?",
    re.IGNORECASE,
)
_INSTANCE = re.compile(r"(?<![\w.-])(" + "|".join(map(re.escape, INSTANCES)) + r")(?![\w-])", re.IGNORECASE)


def device_in_text(text: str) -> Gpu | None:
    """Return the device that a text names; None if it names none, or several.

    A name without its memory means the one with memory that the text names as well.
    """
    text = text[:_LONGEST]
    names = [
        " ".join(filter(None, (match[2], match[3].strip(" -"), match[1] or match[4].strip(" -()"))))
        for match in _DEVICE.finditer(text)
    ]
    names += [INSTANCES[match[1].lower()] for match in _INSTANCE.finditer(text)]
    distinct = {name.lower() for name in names}
    whole = [name for name in distinct if not any(set(name.split()) < set(other.split()) for other in distinct)]
    gpus = {gpu.name: gpu for gpu in map(find, whole) if gpu is not None}
    return next(iter(gpus.values())) if len(gpus) == 1 else None
