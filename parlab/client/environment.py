"""What a script runs in, and its settings as flat texts."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from . import pods

PACKAGES = (
    "torch",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "megatron-core",
    "numpy",
)
VALUE_LENGTH = 6_000
KEY_LENGTH = 250
MAX_SETTINGS = 5_000
MAX_CHARACTERS = 500_000

log = logging.getLogger("parlab")


def description() -> dict[str, Any]:
    """Describe host, command, Python, packages and git revision."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except Exception:  # a damaged installation must not stop a training
            continue
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": [sys.executable, *sys.argv][:200],
        "environment": {
            "hostname": socket.gethostname(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "packages": versions,
            "torch": versions.get("torch", ""),
            "git_revision": git_revision(Path.cwd()),
            "slurm_job_id": os.environ.get("SLURM_JOB_ID", ""),
            "memory_bytes": memory_bytes(),
            **({"kubernetes": pod} if (pod := pods.pod(os.environ)) else {}),
        },
    }


def memory_bytes() -> int:
    """Return the memory of this machine; 0 where the system does not state it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def git_revision(directory: Path) -> str:
    """Return the commit that is checked out around a directory, read without running git; empty if there is none."""
    try:
        for parent in (directory, *directory.parents):
            git = parent / ".git"
            if git.is_file():
                git = Path(parent, git.read_text().partition(":")[2].strip())
            if git.is_dir():
                head = (git / "HEAD").read_text().strip()
                if not head.startswith("ref: "):
                    return head[:64]
                common = git / "commondir"
                roots = [git, Path(git, common.read_text().strip())] if common.exists() else [git]
                return next((text for root in roots if (text := _reference(root, head[5:]))), "")
    except (OSError, UnicodeDecodeError):
        pass
    return ""


def _reference(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text().strip()[:64]
    if (git / "packed-refs").is_file():
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ")[0][:64]
    return ""


def flat(config: Any) -> dict[str, str]:
    """Return settings as texts under dotted names: {"model": {"layers": 2}} -> {"model.layers": "2"}."""
    if config is None:
        return {}
    try:
        return _bounded(_mapping(config))
    except Exception as error:  # a class of the script may fail in any way
        log.warning("config is not recorded: %s", error)
        return {}


def _bounded(config: Mapping[Any, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    characters = 0
    for name, value in _pairs("", config, depth=0):
        characters += len(name) + len(value)
        if characters > MAX_CHARACTERS or len(settings) >= MAX_SETTINGS:
            log.warning("config is too large: the settings from %r are not recorded", name)
            break
        settings[name] = value
    return settings


def _mapping(config: Any) -> Mapping[Any, Any]:
    if isinstance(config, Mapping):
        return config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    for method in ("to_dict", "model_dump"):
        if hasattr(config, method):
            converted = getattr(config, method)()
            if isinstance(converted, Mapping):
                return converted
    return vars(config) if hasattr(config, "__dict__") else {"config": config}


def _pairs(prefix: str, config: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < 8:
            yield from _pairs(f"{name}.", value, depth + 1)
        else:
            yield _text(name)[:KEY_LENGTH], _text(value)[:VALUE_LENGTH]


def _text(value: Any) -> str:
    try:
        # JSON has no lone surrogates.
        return str(value).encode("utf-8", "replace").decode()
    except Exception:
        return type(value).__name__
