"""Experiment tracking for parallel training: `parlab.init` in a script; the server is in the packages below.

Importing this package imports neither the server nor a library beyond the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parlab.client.callbacks import (
        DeepSpeedMonitor,
        HuggingFaceCallback,
        HuggingFaceStop,
        LightningCallback,
        LightningStop,
    )
    from parlab.client.run import Run, init
    from parlab.client.server.api import Api
    from parlab.client.stopping import should_stop

__all__ = [
    "Api",
    "DeepSpeedMonitor",
    "HuggingFaceCallback",
    "HuggingFaceStop",
    "LightningCallback",
    "LightningStop",
    "Run",
    "init",
    "should_stop",
]

_MODULES = {
    "Api": "server.api",
    "DeepSpeedMonitor": "callbacks",
    "HuggingFaceCallback": "callbacks",
    "HuggingFaceStop": "callbacks",
    "LightningCallback": "callbacks",
    "LightningStop": "callbacks",
    "Run": "run",
    "init": "run",
    "should_stop": "stopping",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"parlab.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'parlab' has no attribute {name!r}")
