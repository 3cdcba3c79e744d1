"""What `cluster.device` may be, one row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Device:
    """One value of `cluster.device`; cpu and cuda are also torch's names of a device type."""

    name: str
    may_use_gpus: bool
    """Ranks get a GPU each, if the node has enough of them."""
    may_use_cpu: bool
    """Ranks can be processes on the CPU."""
    backend: str = ""
    """torch.distributed backend of ranks on this type of device; empty if the node decides the type."""

    @property
    def needs_gpus(self) -> bool:
        """Whether a node without enough GPUs cannot take the run."""
        return not self.may_use_cpu


AUTO = Device(name="auto", may_use_gpus=True, may_use_cpu=True)
CPU = Device(name="cpu", may_use_gpus=False, may_use_cpu=True, backend="gloo")
CUDA = Device(name="cuda", may_use_gpus=True, may_use_cpu=False, backend="nccl")

DEVICES = {row.name: row for row in (AUTO, CPU, CUDA)}
"""Name -> device, in the order in which forms and messages list them."""
