"""Commands on experiments and runs: launch, watch, cancel, relaunch, wait, compare, plan, import and export."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parlab.client.command.tables import Progress, print_json, print_table, table_cell
from parlab.client.server.api import Api
from parlab.client.server.experiments import Run, flat_row

OK, ENDED_BADLY = 0, 4
WATCH_S = 1.0
_BAR = 20
_MEASURES = ("step_time_s", "samples_per_s", "tokens_per_s", "memory_max_bytes", "mfu", "gpu_utilization", "last_step")


def launch(arguments: argparse.Namespace, api: Api) -> int:
    """Save a configuration if one is given, launch its points, and watch them with --watch."""
    experiment = api.experiment(arguments.experiment)
    version, digest = arguments.version, None
    if arguments.config is not None:
        body = _json_file(arguments.config)
        data = body.get("data", body)
        saved = experiment.configure(data, body.get("sweep") if "data" in body else None, note=arguments.note)
        version, digest = saved["version"], saved.get("digest")
    runs = experiment.launch(version, digest)
    if arguments.watch and runs:
        return _watch(api, arguments.experiment, [run.number for run in runs])
    if arguments.json:
        print_json([run.data for run in runs])
    else:
        print_table(("number", "state", "label", "point"), [run.data for run in runs], empty="no point without a run")
    return OK


def watch(arguments: argparse.Namespace, api: Api) -> int:
    """Show the progress of runs until all have ended."""
    if arguments.json:
        runs = [api.run(arguments.experiment, number).wait() for number in _numbers(arguments, api)]
        print_json([run.data for run in runs])
        return _end_code(runs)
    return _watch(api, arguments.experiment, _numbers(arguments, api))


def _numbers(arguments: argparse.Namespace, api: Api) -> list[int]:
    """Return the runs that the arguments name, else all that have not ended."""
    if arguments.numbers:
        return list(arguments.numbers)
    return [run.number for run in api.experiment(arguments.experiment).runs() if not run.is_final]


def _watch(api: Api, slug: str, numbers: Sequence[int]) -> int:
    progress = Progress()
    experiment = api.experiment(slug)
    while True:
        runs = [run for run in experiment.runs() if run.number in numbers]
        missing = sorted(set(numbers) - {run.number for run in runs})
        if missing:
            raise ValueError(f"{slug} has no run {missing[0]}; `parlab ls {slug}` lists its runs")
        progress.show({run.number: progress_line(run.data) for run in runs})
        if all(run.is_final for run in runs):
            if not runs:
                sys.stdout.write("no run is active\n")
            return _end_code(runs)
        time.sleep(WATCH_S)


def progress_line(run: Mapping[str, Any]) -> str:
    """Return number, state, steps and speed of a run as one line."""
    step, planned = run.get("last_step"), run.get("planned_steps")
    parts = [f"run {run['number']}", str(run["state"])]
    if step is not None and planned:
        share = min(1.0, step / planned)
        filled = round(share * _BAR)
        parts.append(f"[{'#' * filled}{'.' * (_BAR - filled)}] step {step}/{planned} {share:.0%}")
    elif step is not None:
        parts.append(f"step {step}")
    for name, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
        if run.get(name):
            parts.append(f"{run[name]:.4g} {unit}")
            break
    return "  ".join([*parts, table_cell(run["reason"])] if run.get("reason") else parts)


def _end_code(runs: Sequence[Run]) -> int:
    return OK if all(run.state == "finished" for run in runs) else ENDED_BADLY


def wait(arguments: argparse.Namespace, api: Api) -> int:
    """Wait until one run has ended."""
    run = api.run(arguments.experiment, arguments.number).wait(arguments.timeout)
    sys.stdout.write(f"run {run.number} {run.state}\n")
    return _end_code([run])


def cancel(arguments: argparse.Namespace, api: Api) -> int:
    """Cancel one run."""
    run = api.run(arguments.experiment, arguments.number).cancel()
    sys.stdout.write(f"run {run.number} {run.state}\n")
    return OK


def end_chain(arguments: argparse.Namespace, api: Api) -> int:
    """Make the current attempt of a chain the last one."""
    run = api.run(arguments.experiment, arguments.number).end_chain()
    sys.stdout.write(f"run {run.number} {run.state}, attempt {run.data['attempt_number']} is the last one\n")
    return OK


def relaunch(arguments: argparse.Namespace, api: Api) -> int:
    """Start the next attempt of one run."""
    run = api.run(arguments.experiment, arguments.number).relaunch()
    sys.stdout.write(f"run {run.number} {run.state}, attempt {run.data['attempt_number']}\n")
    return OK


def compare(arguments: argparse.Namespace, api: Api) -> int:
    """Print measures of runs, and the settings in which they differ, relative to the first run."""
    runs = [_named(name, arguments.runs[0], api) for name in arguments.runs]
    rows = list(comparison(runs))
    if arguments.json:
        print_json(rows)
        return OK
    titles = [f"{run.slug}:{run.number}" for run in runs]
    texts = [{"": row["name"], **dict(zip(titles, map(_compared, row["values"], row["ratios"])))} for row in rows]
    print_table(["", *titles], texts)
    return OK


def _named(name: str, first: str, api: Api) -> Run:
    """Return the run of `EXPERIMENT:NUMBER`, or of `NUMBER` in the experiment of the first run."""
    slug, _, number = name.rpartition(":")
    slug = slug or first.rpartition(":")[0]
    if not slug or not number.isdecimal():
        raise ValueError(f"run {name!r} is not EXPERIMENT:NUMBER; use for example bert-base:3")
    return api.run(slug, int(number))


def comparison(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield rows of measures and of differing settings: name, values, ratios to the first run."""
    loss = [((run.data.get("summary") or {}).get("loss") or {}).get("last") for run in runs]
    measures = {name: [run.data.get(name) for run in runs] for name in ("state", *_MEASURES)} | {"loss": loss}
    for name, values in measures.items():
        if any(value is not None for value in values):
            yield {"name": name, "values": values, "ratios": _ratios(values)}
    settings = [dict(_flat("", run.data.get("resolved") or {})) for run in runs]
    for name in sorted({name for each in settings for name in each}):
        values = [each.get(name) for each in settings]
        if any(value != values[0] for value in values):
            yield {"name": name, "values": values, "ratios": [None] * len(values)}


def _ratios(values: Sequence[Any]) -> list[float | None]:
    first = values[0]
    if not isinstance(first, (int, float)) or isinstance(first, bool) or not first:
        return [None] * len(values)
    return [None, *(value / first if isinstance(value, (int, float)) else None for value in values[1:])]


def _flat(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _compared(value: Any, ratio: float | None) -> str:
    return table_cell(value) if ratio is None else f"{table_cell(value)} ({ratio:.3g} x)"


def plan(arguments: argparse.Namespace, api: Api) -> int:
    """Plan a training from NAME=VALUE pairs, a JSON file, or both."""
    question = _json_file(arguments.file) if arguments.file is not None else {}
    if arguments.huggingface is not None:
        question["huggingface"] = _json_file(arguments.huggingface)
    for pair in arguments.fields:
        name, is_pair, value = pair.partition("=")
        if not is_pair:
            raise ValueError(f"field {pair!r} is not NAME=VALUE; use for example layers=24")
        try:
            question[name] = json.loads(value)
        except ValueError:
            question[name] = value
    answer = api.plan(**question)
    if arguments.json:
        print_json(answer)
        return OK
    for name, value in answer.items():
        if not isinstance(value, (dict, list)):
            sys.stdout.write(f"{name}: {table_cell(value)}\n")
        elif isinstance(value, dict):
            scalars = [f"{key} {table_cell(each)}" for key, each in value.items() if not isinstance(each, (dict, list))]
            if scalars:
                sys.stdout.write(f"{name}: {', '.join(scalars)}\n")
        elif value and isinstance(value[0], str):
            sys.stdout.write("".join(f"{name}: {text}\n" for text in value))
        elif value and isinstance(value[0], dict):
            columns = [key for key, each in value[0].items() if not isinstance(each, (dict, list))]
            sys.stdout.write(f"\n{name}\n")
            print_table(columns, value[: arguments.rows])
    return OK


def import_paths(arguments: argparse.Namespace, api: Api) -> int:
    """Import files and directories."""
    items = []
    for path in arguments.paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        items += api.import_path(
            path, experiment=arguments.experiment, format=arguments.format, dry_run=arguments.dry_run
        )
    if arguments.json:
        print_json(items)
        return OK
    rows = [{**item, "runs": len(item.get("runs") or [])} for item in items]
    columns = [key for key, value in (rows[0] if rows else {}).items() if not isinstance(value, (dict, list))]
    print_table(columns, rows, empty="nothing to import")
    return OK


def export(arguments: argparse.Namespace, api: Api) -> int:
    """Write runs with their series, logs and artifacts into a directory."""
    experiment = api.experiment(arguments.experiment)
    numbers = arguments.numbers or [run.number for run in experiment.runs()]
    target: Path = arguments.output
    target.mkdir(parents=True, exist_ok=True)
    runs = [experiment.run(number) for number in numbers]
    (target / "experiment.json").write_text(json.dumps(experiment.data, indent=2), encoding="utf-8")
    with (target / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        flat = [flat_row(run.data) for run in runs]
        names = dict.fromkeys(name for row in flat for name in row if name not in ("summary", "resolved", "launch"))
        rows = csv.writer(file)
        rows.writerow(names)
        rows.writerows([table_text(row.get(name)) for name in names] for row in flat)
    for run in runs:
        _export_run(run, target / f"run-{run.number}", arguments.format, with_artifacts=arguments.artifacts)
        sys.stderr.write(f"run {run.number}\n")
    sys.stdout.write(f"{len(runs)} runs in {target}\n")
    return OK


def table_text(value: Any) -> Any:
    """Return a value as a cell of a CSV file, with all its digits."""
    return json.dumps(value) if isinstance(value, (dict, list)) else "" if value is None else value


def _export_run(run: Run, target: Path, form: str, *, with_artifacts: bool) -> None:
    (target / "series").mkdir(parents=True, exist_ok=True)
    (target / "run.json").write_text(json.dumps(run.data, indent=2), encoding="utf-8")
    (target / "log.txt").write_bytes(run.log())
    for metric in sorted({info["metric"] for info in run.metrics()}):
        # A metric may have any name, a file may not.
        name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in metric)[:150]
        series = run.series(metric)
        suffix, content = (".arrows", series.arrow()) if form == "arrow" else (".csv", series.csv())
        path = target / "series" / f"{name}{suffix}"
        number = 2
        while path.exists():
            path, number = target / "series" / f"{name}-{number}{suffix}", number + 1
        path.write_bytes(content)
    if with_artifacts:
        for artifact in run.artifacts():
            path = (target / "artifacts" / artifact["path"]).resolve()
            if (target / "artifacts").resolve() not in path.parents:
                raise ValueError(f"artifact {artifact['path']!r} would be written outside of {target}")
            run.download(artifact["path"], path)


def _json_file(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError(f"{path} is not a JSON object; see docs/use/api.md")
    return body
