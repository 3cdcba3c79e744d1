"""Reads shaped for a page or a figure."""

from .compare import Comparison, compare
from .device_maps import run_device_map
from .differences import Difference, Side, attempt_side, other_runs, other_side, run_difference, suggestions
from .experiments import (
    LaunchPlan,
    StateCount,
    Versions,
    experiment_runs,
    experiment_versions,
    launch_plan,
    state_counts,
)
from .figures import figure_title, stated
from .filters import Filter, completions, field_help
from .findings import (
    Doubts,
    FindingRow,
    experiment_findings,
    finding_rows,
    run_doubts,
    run_findings,
)
from .home import Home, home
from .leads import Lead, Verdict, experiment_leads, verdict
from .links import LinkRow, link_rows, why_no_links
from .lists import ExperimentRow, RunLine, experiment_list, experiment_tags, matching_runs, run_list, tag_names
from .networks import NetworkCell, NetworkSweep, has_pipelines, network_sweep
from .nodes import NodeRow, node_list
from .pipelines import PipelineRun, pipeline_run, simulate_address, times_of
from .plans import (
    CalibrationGroup,
    CalibrationPool,
    calibration_of,
    calibration_pool,
    device_named,
    devices,
    predicted_points,
)
from .records import run_records, varied_fields
from .reports import experiment_report
from .runs import (
    ConfigSection,
    RunRow,
    by_hand,
    command_line,
    config_sections,
    flat,
    remaining_s,
    run_figures,
    run_row,
    run_rows,
)
from .sources import SourceView, source_bytes, source_lines, source_stream, source_views, with_excerpts
from .sweep import METRICS, Cell, Sweep, SweepTable, metrics_of, run_points, sweep_tables
from .timelines import simulated_run, simulated_timeline
from .utilisation import compute, measured_pct, peak_words, share_pct

__all__ = [
    "METRICS",
    "CalibrationGroup",
    "CalibrationPool",
    "Cell",
    "Comparison",
    "ConfigSection",
    "Difference",
    "Doubts",
    "ExperimentRow",
    "Filter",
    "FindingRow",
    "Home",
    "LaunchPlan",
    "Lead",
    "LinkRow",
    "NetworkCell",
    "NetworkSweep",
    "NodeRow",
    "PipelineRun",
    "RunLine",
    "RunRow",
    "Side",
    "SourceView",
    "StateCount",
    "Sweep",
    "SweepTable",
    "Verdict",
    "Versions",
    "attempt_side",
    "by_hand",
    "calibration_of",
    "calibration_pool",
    "command_line",
    "compare",
    "completions",
    "compute",
    "config_sections",
    "device_named",
    "devices",
    "experiment_findings",
    "experiment_leads",
    "experiment_list",
    "experiment_report",
    "experiment_runs",
    "experiment_tags",
    "experiment_versions",
    "field_help",
    "figure_title",
    "finding_rows",
    "flat",
    "has_pipelines",
    "home",
    "launch_plan",
    "link_rows",
    "matching_runs",
    "measured_pct",
    "metrics_of",
    "network_sweep",
    "node_list",
    "other_runs",
    "other_side",
    "peak_words",
    "pipeline_run",
    "predicted_points",
    "remaining_s",
    "run_device_map",
    "run_difference",
    "run_doubts",
    "run_figures",
    "run_findings",
    "run_list",
    "run_points",
    "run_records",
    "run_row",
    "run_rows",
    "share_pct",
    "simulate_address",
    "simulated_run",
    "simulated_timeline",
    "source_bytes",
    "source_lines",
    "source_stream",
    "source_views",
    "state_counts",
    "stated",
    "suggestions",
    "sweep_tables",
    "tag_names",
    "times_of",
    "varied_fields",
    "verdict",
    "why_no_links",
    "with_excerpts",
]
