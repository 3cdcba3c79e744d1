"""RunConfig: the one definition of a configuration, for the admin, the API and the runner.

A configuration is a tree of sections and a launcher. Whatever is wrong with one is reported as `Problem`s that name
the field, its value and the remedy; nothing is dropped or corrected in silence.
"""

from .problems import ConfigError, Problem
from .rules import ENGINE_TRAINS
from .run import RunConfig, check, complete, field_names, filled_fields, sections, tuned_data, with_values
from .sections import (
    PLACEHOLDER,
    AutotuningSection,
    CapacitySection,
    ClusterSection,
    CollectivesSection,
    CommandSection,
    EmulationSection,
    LauncherSection,
    LinkSetting,
    ModelSection,
    NetworkSection,
    ParallelSection,
    Section,
    ShardingSection,
    TrainSection,
)
from .sweep import MAX_SWEEP_POINTS, Point, difference, digest, expand, sweep_problems

__all__ = [
    "ENGINE_TRAINS",
    "MAX_SWEEP_POINTS",
    "PLACEHOLDER",
    "AutotuningSection",
    "CapacitySection",
    "ClusterSection",
    "CollectivesSection",
    "CommandSection",
    "ConfigError",
    "EmulationSection",
    "LauncherSection",
    "LinkSetting",
    "ModelSection",
    "NetworkSection",
    "ParallelSection",
    "Point",
    "Problem",
    "RunConfig",
    "Section",
    "ShardingSection",
    "TrainSection",
    "check",
    "complete",
    "difference",
    "digest",
    "expand",
    "field_names",
    "filled_fields",
    "sections",
    "sweep_problems",
    "tuned_data",
    "with_values",
]
