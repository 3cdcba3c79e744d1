"""A study's result as Markdown, in the shape in which results of autotuning are published."""

from __future__ import annotations

from datetime import timedelta

from .models import Study
from .results import Result, SpaceRow, Tried

_TITLES = {"baseline": "Baseline", "hand-tuned": "Hand-tuned", "tuned": "Tuned"}


def trial_line(tried: Tried, unit: str) -> str:
    """One trial in one line, for a terminal."""
    value = f"{tried.value:.4g} {unit}" if tried.value else tried.run.state.upper()
    expected = f" (expected {tried.trial.expected:.4g})" if tried.trial.expected else ""
    reused = ", measured before" if tried.trial.reused else ""
    return f"{tried.trial.number:>3} {tried.trial.role:<10} {tried.trial.key:<24} {value}{expected}{reused}"


def result_markdown(result: Result) -> str:
    """Write environment, comparison, summary by tuning space, tuning time and improvements."""
    study = result.study
    parts = [
        f"# {study.config.experiment.name}: {study.strategy} tuning",
        "## Environment\n\n" + "\n".join(f"- {name}: {text}" for name, text in result.environment.items()),
        f"## Comparison\n\nValues in {result.unit}, from end to end: median of the timed steps.\n\n"
        + _comparison(result),
        "## Result by tuning space\n\n" + _spaces(result),
        _closing(result),
    ]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _comparison(result: Result) -> str:
    columns = [_TITLES[column.name] for column in result.compared]
    cells = [_cell(column.best) for column in result.compared]
    name = result.study.config.experiment.name.replace("|", "/")
    return "\n".join(
        [
            f"| Model name | {' | '.join(columns)} |",
            f"| --- | {' | '.join('---' for _ in columns)} |",
            f"| {name} | {' | '.join(cells)} |",
        ]
    )


def _cell(best: Tried | None) -> str:
    return "-" if best is None or best.value is None else f"{best.value:.3f} ({best.trial.key})"


def _spaces(result: Result) -> str:
    head = "| tuning_space | num_experiments | best_metric_val | best_exp_name | tuner's metric |"
    return "\n".join([head, "| :--- | ---: | ---: | :--- | ---: |", *(_space(row) for row in result.spaces)])


def _space(row: SpaceRow) -> str:
    if row.best is None or row.best.value is None:
        return f"| {row.tuning_space} | {row.num_experiments} | - | - | - |"
    inside = "-" if row.best.tuner_value is None else f"{row.best.tuner_value:.2f}"
    return f"| {row.tuning_space} | {row.num_experiments} | {row.best.value:.2f} | {row.best.trial.key} | {inside} |"


def _closing(result: Result) -> str:
    count = len(result.search)
    lines = [f"Tuning {_ended(result.study)} in {clock(result.tuning_time)}. Total number of experiments: {count}."]
    for name in ("baseline", "hand-tuned"):
        factor = result.improvement_over(name)
        if factor is not None:
            lines.append(f"Improvement over {name}: {factor:.2f}x.")
    if result.study.reason:
        lines.append(f"It stopped because {result.study.reason}.")
    return "\n".join(lines)


def _ended(study: Study) -> str:
    return "completed" if study.state == Study.State.FINISHED else study.state


def clock(time: timedelta) -> str:
    """H:MM:SS."""
    seconds = round(time.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
