"""What we plan and what we ran."""

from .config import Config
from .experiment import Experiment
from .node import Node
from .run import Attempt, Run
from .snapshot import Snapshot

__all__ = ["Attempt", "Config", "Experiment", "Node", "Run", "Snapshot"]
