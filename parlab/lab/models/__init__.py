"""What we plan and what we ran."""

from .config import Config
from .experiment import Experiment, Tag
from .finding import Finding
from .node import Node
from .run import Attempt, Run
from .snapshot import Snapshot
from .source import Picture, Source, SourceChunk

__all__ = [
    "Attempt",
    "Config",
    "Experiment",
    "Finding",
    "Node",
    "Picture",
    "Run",
    "Snapshot",
    "Source",
    "SourceChunk",
    "Tag",
]
