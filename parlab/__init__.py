"""Experiment tracking for parallel training: `parlab.init` in a script; the server is in the packages below.

Importing this package imports neither the server nor a library beyond the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runners.client import Api, DeepSpeedMonitor, HuggingFaceCallback, LightningCallback, Run, init

__all__ = ["Api", "DeepSpeedMonitor", "HuggingFaceCallback", "LightningCallback", "Run", "init"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from runners import client

        return getattr(client, name)
    raise AttributeError(f"module 'parlab' has no attribute {name!r}")
