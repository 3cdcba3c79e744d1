"""What W&B's client states about the machine of a run, in the words of an attempt's environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TEXTS = {"host": "hostname", "os": "system", "python": "python", "executable": "executable", "cudaVersion": "cuda"}
_MAX_GPUS = 64
_MAX_TEXT = 200


def machine_of(writers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine of the process that stated one first: devices, host, versions and commit."""
    return next((facts for stated in writers.values() if (facts := _facts(stated))), {})


def _facts(stated: Any) -> dict[str, Any]:
    if not isinstance(stated, Mapping):
        return {}
    facts: dict[str, Any] = {
        name: value[:_MAX_TEXT] for key, name in _TEXTS.items() if isinstance(value := stated.get(key), str) and value
    }
    cores, git = stated.get("cpu_count"), stated.get("git")
    if type(cores) is int and 0 < cores < 2**31:
        facts["cpu_cores"] = cores
    if isinstance(git, Mapping) and isinstance(commit := git.get("commit"), str) and commit:
        facts["git_revision"] = commit[:_MAX_TEXT]
    if gpus := list(_gpus(stated)):
        facts["gpus"] = gpus
    return facts


def _gpus(stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the devices of the node; those without a list have one name for all."""
    lists = (stated.get(key) for key in ("gpu_nvidia", "gpu_amd", "gpu_devices"))
    devices = next((value for value in lists if isinstance(value, list) and value), None)
    if devices is None:
        count = stated.get("gpu_count")
        devices = [{"name": stated.get("gpu")}] * (count if type(count) is int and 0 < count <= _MAX_GPUS else 1)
    for index, device in enumerate(devices[:_MAX_GPUS]):
        name = device.get("name") or device.get("modelName") if isinstance(device, Mapping) else None
        if not isinstance(name, str) or not name:
            continue
        gpu: dict[str, Any] = {"index": index, "name": name[:_MAX_TEXT]}
        if isinstance(uuid := device.get("uuid"), str) and uuid:
            gpu["uuid"] = uuid[:_MAX_TEXT]
        # Whole numbers of 64 bits are texts in the client's JSON.
        memory = str(device.get("memoryTotal") or device.get("memory_total") or "")
        if memory.isascii() and memory.isdecimal() and len(memory) < 16:
            gpu["memory_bytes"] = int(memory)
        yield gpu
