"""Experiments, configurations, runs and everything recorded about them."""

from .config import Config
from .device import Device
from .experiment import Experiment, Tag
from .finding import Finding
from .node import Node
from .report import PictureJob, Report, ReportFile, ReportLink, ReportVersion
from .run import Attempt, Run
from .snapshot import Snapshot
from .source import Picture, Source, SourceChunk
from .stored_file import StoredFile
from .token import ApiToken

__all__ = [
    "ApiToken",
    "Attempt",
    "Config",
    "Device",
    "Experiment",
    "Finding",
    "Node",
    "Picture",
    "PictureJob",
    "Report",
    "ReportFile",
    "ReportLink",
    "ReportVersion",
    "Run",
    "Snapshot",
    "Source",
    "SourceChunk",
    "StoredFile",
    "Tag",
]
