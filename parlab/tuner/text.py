"""A study's result as Markdown, in the form in which autotuning results are published."""

from __future__ import annotations

from datetime import timedelta

from parlab.charts.format import SPACE, quantity
from parlab.planner.job.configs import job_of
from runners.config import RunConfig, check, complete, engine_of

from .models import Study
from .results import Result, SpaceRow, Tried

METRICS = (
    "The tuner's metric counts only forward, backward and update, as DeepSpeed's autotuner does. These are less than a"
    " whole step, so on an idle machine this metric is the higher of the two. The best setting is the best end to end."
)
_TITLES = {"baseline": "Baseline", "hand-tuned": "Hand-tuned", "tuned": "Tuned"}


def trial_line(tried: Tried, unit: str) -> str:
    value = f"{tried.value:.4g} {unit}" if tried.value else tried.run.state.upper()
    expected = f" (expected {tried.trial.expected:.4g})" if tried.trial.expected else ""
    reused = ", measured before" if tried.trial.reused else ""
    return f"{tried.trial.number:>3} {tried.trial.role:<10} {tried.trial.key:<24} {value}{expected}{reused}"


def result_markdown(result: Result) -> str:
    """Return model, environment, comparison, results by tuning space, tuning time and improvements as Markdown."""
    study = result.study
    parts = [
        f"# {study.config.experiment.name}",
        "\n".join(["The model has this configuration:", "", *(f"- {line}" for line in model_lines(result))]),
        "\n".join(["## Environment", "", hardware_line(result), "", *_versions(result)]),
        "\n".join(["## Comparison", "", *_legend(result), "", _comparison(result)]),
        "\n".join(["## Result of the search by tuning space", "", METRICS, "", *_summary(result), "", _spaces(result)]),
        _closing(result),
    ]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def model_lines(result: Result) -> list[str]:
    """Describe the model of a study, one line per size; empty for an invalid configuration."""
    config = _config(result)
    if config is None:
        return []
    model = config.model
    return [
        f"{model.kind.upper()}, {model.num_layers} layers",
        f"{model.hidden_size} hidden dimension",
        f"{model.num_attention_heads} attention heads",
        f"sequence length {model.sequence_length}",
        quantity(job_of(config).model.parameters, "parameters").replace(SPACE, " "),
    ]


def hardware_line(result: Result) -> str:
    """Return a sentence about the hardware and the precision of a study."""
    config = _config(result)
    if config is None:
        return ""
    ranks = sorted({_ranks(each) for each in result.tried} or {config.world_size})
    count = f"{' or '.join(map(str, ranks))} {'rank' if ranks == [1] else 'ranks'}"
    node, devices = result.environment.get("node"), result.environment.get("devices")
    where = f" on node {node}" if node else ""
    kind = f" ({devices})" if devices else ""
    return (
        f"The training uses {config.train.precision} and runs as {count}{where}{kind}."
        " Tuning uses the same hardware as the training."
    )


def _config(result: Result) -> RunConfig | None:
    """Return a configuration of the space: that of the first trial, or before it the one without a sweep."""
    if result.search:
        return check(result.search[0].run.resolved)[0]
    return check(complete(result.study.config.data))[0]


def _ranks(tried: Tried) -> int:
    parallel = tried.run.resolved["parallel"]
    return int(parallel["data_parallel_size"] * parallel["tensor_parallel_size"] * parallel["pipeline_parallel_size"])


def _versions(result: Result) -> list[str]:
    return [f"- {name} ({text})" for name, text in result.environment.items() if name not in ("node", "devices")]


def _legend(result: Result) -> list[str]:
    """Explain the columns and the names of settings."""
    names = {column.name for column in result.compared}
    lines = [
        f"Values in {result.unit}, measured end to end: median of the timed steps. The setting is in parentheses.",
        "",
    ]
    if result.study.baseline is not None and "baseline" in names:
        baseline = result.study.baseline
        engine = engine_of(baseline.data).title
        lines.append(f"- Baseline: version {baseline.version}, {engine}; its micro batch is increased by itself.")
    if "hand-tuned" in names:
        lines.append(
            "- Hand-tuned: the micro batch is increased from the smallest until out of memory, with all other axes at"
            " their first value."
        )
    lines.append(f"- Tuned: the best setting of strategy {result.study.strategy}.")
    return [*lines, "", "z: ZeRO stage, gas: gradient accumulation steps, tmbspg: micro batch size of each rank."]


def _summary(result: Result) -> list[str]:
    lines = [f"- Tuning time: {clock(result.tuning_time)}", f"- Number of experiments: {len(result.search)}"]
    for name in ("baseline", "hand-tuned"):
        factor = result.improvement_over(name)
        if factor is not None:
            lines.append(f"- Throughput improvement over {name}: {factor:.2f}x")
    if result.study.objective != Study.Objective.THROUGHPUT:
        lines = [line.replace("Throughput improvement", "Improvement") for line in lines]
    return lines


def _comparison(result: Result) -> str:
    columns = [_TITLES[column.name] for column in result.compared]
    cells = [_best_cell(column.best) for column in result.compared]
    name = result.study.config.experiment.name.replace("|", "/")
    return "\n".join(
        [
            f"| Model name | {' | '.join(columns)} |",
            f"| --- | {' | '.join('---' for _ in columns)} |",
            f"| {name} | {' | '.join(cells)} |",
        ]
    )


def _best_cell(best: Tried | None) -> str:
    return "-" if best is None or best.value is None else f"{best.value:.6g} ({best.trial.key})"


def _spaces(result: Result) -> str:
    head = "| tuning_space | num_experiments | best_metric_val | best_exp_name | tuner's metric |"
    return "\n".join([head, "| :--- | ---: | ---: | :--- | ---: |", *(_space(row) for row in result.spaces)])


def _space(row: SpaceRow) -> str:
    if row.best is None or row.best.value is None:
        return f"| {row.tuning_space} | {row.num_experiments} | - | - | - |"
    inside = "-" if row.best.tuner_value is None else f"{row.best.tuner_value:.6g}"
    return f"| {row.tuning_space} | {row.num_experiments} | {row.best.value:.6g} | {row.best.trial.key} | {inside} |"


def _closing(result: Result) -> str:
    count = len(result.search)
    lines = [f"Tuning {_ended(result.study)} in {clock(result.tuning_time)}. Total number of experiments: {count}."]
    if result.study.past_runs:
        lines.append(f"First predictions were corrected by {result.study.past_runs} earlier runs on such nodes.")
    if result.study.reason:
        lines.append(f"It stopped because {result.study.reason}.")
    return "\n".join(lines)


def _ended(study: Study) -> str:
    return "completed" if study.state == Study.State.FINISHED else study.state


def clock(time: timedelta) -> str:
    """H:MM:SS."""
    seconds = round(time.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
