"""Django's admin for the lab: experiments, configs, runs, snapshots, nodes, people and tokens."""

from django.contrib import admin

from .configs import ConfigAdmin
from .devices import DeviceAdmin
from .experiments import ExperimentAdmin
from .nodes import NodeAdmin
from .people import PersonAdmin
from .runs import RunAdmin
from .snapshots import SnapshotAdmin
from .tokens import ApiTokenAdmin

__all__ = [
    "ApiTokenAdmin",
    "ConfigAdmin",
    "DeviceAdmin",
    "ExperimentAdmin",
    "NodeAdmin",
    "PersonAdmin",
    "RunAdmin",
    "SnapshotAdmin",
]

admin.site.site_header = "parlab"
admin.site.site_title = "parlab"
admin.site.index_title = "Administration"
