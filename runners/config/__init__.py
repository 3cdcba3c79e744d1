"""RunConfig: the definition of a configuration, shared by the admin, the API and the runner.

A configuration is a tree of sections. Errors are reported as `Problem`s that name the field, its value and the remedy;
no value is dropped or corrected silently.
"""

from .engines import ENGINES, Engine, engine_names, engine_of, training_engine
from .problems import ConfigError, Problem
from .run import RunConfig, check, complete, field_names, filled_fields, sections, value_problems, with_values
from .sections import (
    PLACEHOLDER,
    CollectivesSection,
    ModelSection,
    NetworkSection,
    ParallelSection,
    ShardingSection,
    TrainSection,
)
from .sweep import (
    MAX_SWEEP_POINTS,
    SEED,
    Point,
    difference,
    digest,
    expand,
    repeated,
    sweep_problems,
    sweep_value_problems,
)
from .tuned import tuned_config

__all__ = [
    "ENGINES",
    "MAX_SWEEP_POINTS",
    "PLACEHOLDER",
    "SEED",
    "CollectivesSection",
    "ConfigError",
    "Engine",
    "ModelSection",
    "NetworkSection",
    "ParallelSection",
    "Point",
    "Problem",
    "RunConfig",
    "ShardingSection",
    "TrainSection",
    "check",
    "complete",
    "difference",
    "digest",
    "engine_names",
    "engine_of",
    "expand",
    "field_names",
    "filled_fields",
    "repeated",
    "sections",
    "sweep_problems",
    "sweep_value_problems",
    "training_engine",
    "tuned_config",
    "value_problems",
    "with_values",
]
