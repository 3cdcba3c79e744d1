"""Experiments, configurations, runs and everything recorded about them."""

from parlab.lab.models.access.audit import AuditEntry
from parlab.lab.models.access.device_login import DeviceLogin
from parlab.lab.models.access.login import LoginFailure
from parlab.lab.models.access.node_key import NodeKey
from parlab.lab.models.access.project import Membership, Project, ProjectPool, Role
from parlab.lab.models.access.refused import RefusedMessage
from parlab.lab.models.access.service_account import ServiceAccount
from parlab.lab.models.access.token import ALL_SCOPES, SCOPE_TEXTS, SCOPES, USUAL_SCOPES, ApiToken

from .advice import AdviceTrial
from .approval import LaunchApproval
from .config import Config
from .device import Device, DevicePrice
from .event import Event
from .exclusion import Exclusion
from .experiment import Experiment, Tag
from .finding import Finding
from .inbox import InboxItem, InboxMute, InboxReading
from .log_format import LogFormat
from .mark import Comment, RunNote, Star, TagOfRun
from .member import ACTIVE_MEMBER_STATES, Member, MemberState
from .node import Node
from .pages import Dashboard, PanelLayout, Preference, SavedView, Visit
from .report import PictureJob, Report, ReportFile, ReportLink, ReportVersion
from .run import Attempt, Run
from .snapshot import Snapshot
from .source import Picture, Source, SourceChunk
from .stored_file import StoredFile
from .stream import Stream
from .trace import RankTrace
from .tracked import Artifact, ExperimentLabel, LatestMetric, LoggedModel, NameMeaning, RunParameter, RunTag, TrackedRun
from .wandb import LoggedValue, WandbArtifact, WandbRun

__all__ = [
    "ACTIVE_MEMBER_STATES",
    "ALL_SCOPES",
    "SCOPES",
    "SCOPE_TEXTS",
    "USUAL_SCOPES",
    "AdviceTrial",
    "ApiToken",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Comment",
    "Config",
    "Dashboard",
    "Device",
    "DeviceLogin",
    "DevicePrice",
    "Event",
    "Exclusion",
    "Experiment",
    "ExperimentLabel",
    "Finding",
    "InboxItem",
    "InboxMute",
    "InboxReading",
    "LatestMetric",
    "LaunchApproval",
    "LogFormat",
    "LoggedModel",
    "LoggedValue",
    "LoginFailure",
    "Member",
    "MemberState",
    "Membership",
    "NameMeaning",
    "Node",
    "NodeKey",
    "PanelLayout",
    "Picture",
    "PictureJob",
    "Preference",
    "Project",
    "ProjectPool",
    "RankTrace",
    "RefusedMessage",
    "Report",
    "ReportFile",
    "ReportLink",
    "ReportVersion",
    "Role",
    "Run",
    "RunNote",
    "RunParameter",
    "RunTag",
    "SavedView",
    "ServiceAccount",
    "Snapshot",
    "Source",
    "SourceChunk",
    "Star",
    "StoredFile",
    "Stream",
    "Tag",
    "TagOfRun",
    "TrackedRun",
    "Visit",
    "WandbArtifact",
    "WandbRun",
]
