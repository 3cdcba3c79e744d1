"""Queries for pages, figures, reports and the API, which return plain values."""

from .changes import Changes, changes_since
from .device_grids import device_grid
from .experiments import (
    LaunchPlan,
    StateCount,
    Versions,
    experiment_runs,
    experiment_versions,
    launch_plan,
    state_counts,
    versions_with_results,
)
from .figures import figure_title, stated
from .filters import Filter, completions, field_help
from .findings import (
    Doubts,
    experiment_findings,
    run_doubts,
    run_findings,
)
from .home import Home, home
from .layouts import RankLayout, rank_layout
from .leads import Lead, Verdict, experiment_leads, verdict
from .lists import (
    ExperimentRow,
    RunLine,
    RunMarks,
    experiment_list,
    experiment_tags,
    matching_runs,
    run_list,
    run_marks,
    tag_names,
)
from .log_formats import LogFormatRow, log_format_rows, log_format_versions, log_formats
from .other_runs import OtherRuns, other_runs
from .pipelines import PipelineRun, has_pipelines, pipeline_of, times_of
from .plans import (
    CalibrationGroup,
    CalibrationPool,
    calibration_of,
    calibration_pool,
    device_named,
    device_of,
    devices,
    plan_context,
    predicted_points,
    price_of,
    priced,
)
from .records import run_records, varied_fields
from .repeats import has_repeats, repeat_groups, repeat_key
from .runs import (
    ConfigSection,
    by_hand,
    command_line,
    config_sections,
    flat,
    remaining_s,
    run_figures,
    sections_in_use,
    step_time,
)
from .sources import source_bytes, source_lines, source_stream
from .surroundings import Surroundings, run_surroundings
from .sweep import METRICS, Metric, SweepEntry, metrics_of, run_points, sweep_entries
from .utilisation import compute, measured_pct, peak_text, share_pct
from .waterfalls import RunWaterfalls, has_waterfall, run_waterfalls

__all__ = [
    "METRICS",
    "CalibrationGroup",
    "CalibrationPool",
    "Changes",
    "ConfigSection",
    "Doubts",
    "ExperimentRow",
    "Filter",
    "Home",
    "LaunchPlan",
    "Lead",
    "LogFormatRow",
    "Metric",
    "OtherRuns",
    "PipelineRun",
    "RankLayout",
    "RunLine",
    "RunMarks",
    "RunWaterfalls",
    "StateCount",
    "Surroundings",
    "SweepEntry",
    "Verdict",
    "Versions",
    "by_hand",
    "calibration_of",
    "calibration_pool",
    "changes_since",
    "command_line",
    "completions",
    "compute",
    "config_sections",
    "device_grid",
    "device_named",
    "device_of",
    "devices",
    "experiment_findings",
    "experiment_leads",
    "experiment_list",
    "experiment_runs",
    "experiment_tags",
    "experiment_versions",
    "field_help",
    "figure_title",
    "flat",
    "has_pipelines",
    "has_repeats",
    "has_waterfall",
    "home",
    "launch_plan",
    "log_format_rows",
    "log_format_versions",
    "log_formats",
    "matching_runs",
    "measured_pct",
    "metrics_of",
    "other_runs",
    "peak_text",
    "pipeline_of",
    "plan_context",
    "predicted_points",
    "price_of",
    "priced",
    "rank_layout",
    "remaining_s",
    "repeat_groups",
    "repeat_key",
    "run_doubts",
    "run_figures",
    "run_findings",
    "run_list",
    "run_marks",
    "run_points",
    "run_records",
    "run_surroundings",
    "run_waterfalls",
    "sections_in_use",
    "share_pct",
    "source_bytes",
    "source_lines",
    "source_stream",
    "state_counts",
    "stated",
    "step_time",
    "sweep_entries",
    "tag_names",
    "times_of",
    "varied_fields",
    "verdict",
    "versions_with_results",
]
