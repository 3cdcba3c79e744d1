"""The tools of an agent, over the API, with the token of a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.fastmcp import FastMCP

from parlab.agents.answers import thinned, written
from parlab.agents.budget import Budget, Refusal, Started
from parlab.client.command.actions import comparison
from parlab.client.http import Refused, Unreachable
from parlab.client.server.api import Api
from parlab.client.server.experiments import Run

MAX_RUNS = 100
MAX_POINTS = 200
_MOST_HOURS = 10_000
_COLUMNS = (
    *("experiment", "number", "label", "state", "reason", "origin", "last_step", "step_time_s", "samples_per_s"),
    *("tokens_per_s", "memory_max_bytes", "mfu", "started_at", "ended_at", "findings_open"),
)
INSTRUCTIONS = (
    "parlab holds experiments and runs of parallel training. A run is EXPERIMENT:NUMBER. Numbers are in SI units."
    " Search with a filter like `loss < 2 and params.lr = 0.1 and state = 'finished'`."
)


def main(url: str, token: str, *, agent: str, runs: int, gpu_hours: float) -> None:
    """Serve the tools over standard input and output until the agent ends."""
    server(Api(url, token), Budget(agent, runs=runs, gpu_hours=gpu_hours), agent=agent).run()


def server(api: Api, budget: Budget, *, agent: str) -> FastMCP:
    """Return a server of tools; what they do is recorded under the agent's name."""
    api.connection.agent = agent
    served = FastMCP("parlab", instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(api, budget)
    for function in (
        *(
            tools.experiments,
            tools.search_runs,
            tools.run,
            tools.compare,
            tools.difference,
            tools.series,
            tools.metrics,
        ),
        *(tools.log, tools.findings, tools.advice, tools.plan, tools.nodes, tools.budget),
        *(tools.launch, tools.cancel),
    ):
        served.tool(name=function.__name__, description=function.__doc__)(_bounded(function))
    return served


def _bounded(function: Callable[..., Any]) -> Callable[..., str]:
    """Return a tool that answers in bounded JSON, also where the server refuses."""

    def tool(*arguments: Any, **named: Any) -> str:
        try:
            return written(function(*arguments, **named))
        except (Refused, Unreachable, Refusal, ValueError) as error:
            return written({"error": str(error)})

    tool.__name__, tool.__doc__ = function.__name__, function.__doc__
    tool.__annotations__ = {**function.__annotations__, "return": str}
    tool.__wrapped__ = function  # type: ignore[attr-defined]  # its signature is that of the tool
    return tool


class Tools:
    """What an agent can do."""

    def __init__(self, api: Api, budget: Budget) -> None:
        self._api, self._budget = api, budget

    def experiments(self, query: str = "") -> Any:
        """List experiments whose name or question has these words: slug, name, question, number of runs."""
        names = ("slug", "name", "question", "runs", "findings_open", "created_at")
        return [{name: each.data.get(name) for name in names} for each in self._api.experiments(query)]

    def search_runs(
        self, filter: str = "", experiment: str = "", columns: list[str] | None = None, sort: str = "", limit: int = 25
    ) -> Any:
        """Find runs by a filter in MLflow's language, of one experiment or all, newest first.

        `columns` names further fields, like params.lr or metrics.loss; `sort` is a column, with - for the largest
        first. The answer has the number of all matches.
        """
        found = self._api.runs(filter, experiment=experiment)
        rows = [_row(run.data, columns or []) for run in found]
        name = sort.lstrip("-")
        if name:
            values = [_value(run.data, name) for run in found]
            known = [pair for pair in zip(values, rows, strict=True) if isinstance(pair[0], int | float)]
            known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
            rows = [{**row, name: value} for value, row in known]
        return {"matches": len(found), "runs": rows[: max(1, min(limit, MAX_RUNS))]}

    def run(self, run: str) -> Any:
        """Return one run with its summary, configuration, parameters and last metrics."""
        found = self._run(run)
        reported = found.send("GET", "reported/")
        kept = {name: found.data.get(name) for name in (*_COLUMNS[1:], "summary", "resolved", "url")}
        return {
            "experiment": found.slug,
            **kept,
            "parameters": reported.get("parameters"),
            "tags": reported.get("tags"),
        }

    def compare(self, runs: list[str]) -> Any:
        """Compare up to 10 runs: measures with ratios to the first, and the settings in which they differ."""
        return list(comparison([self._run(name) for name in runs[:10]]))

    def difference(self, run: str, other: str) -> Any:
        """Return settings, environment (hardware, software) and results in which two runs of an experiment differ."""
        return self._run(run).difference(other.rpartition(":")[2])

    def metrics(self, run: str) -> Any:
        """List the metrics of a run with the ranks and points of each."""
        counts: dict[str, dict[str, int]] = {}
        for info in self._run(run).metrics():
            held = counts.setdefault(info["metric"], {"ranks": 0, "points": 0})
            held["ranks"] += 1
            held["points"] = max(held["points"], info["points"])
        return counts

    def series(self, runs: list[str], metric: str, points: int = 50, rank: int = 0) -> Any:
        """Return the points of a metric of up to 20 runs, thinned: {run: [[step, value], ...]}."""
        count = max(2, min(points, MAX_POINTS))
        answers: dict[str, Any] = {}
        for name in runs[:20]:
            found = self._run(name)
            columns = found.series(metric, rank=rank, points=MAX_POINTS).columns()
            answers[name] = thinned(list(zip(columns["step"], columns["value"], strict=True)), count)
        return answers

    def log(self, run: str, text: str = "") -> Any:
        """Return the lines of a run's log that contain a text, by default those that look like errors."""
        return self._run(run).find(text, errors=not text)

    def findings(self, experiment: str = "", run: int | None = None) -> Any:
        """List findings: numbers that contradict each other, each with its rule, both numbers, and where they are."""
        query = f"?experiment={experiment}" if experiment else ""
        rows = self._api.connection.rows(f"/api/findings/{query}")
        return [row for row in rows if run is None or row.get("run") == run]

    def advice(self, run: str) -> Any:
        """Return what to change next about a run, with predicted gains."""
        return self._run(run).advice()

    def plan(self, fields: dict[str, Any]) -> Any:
        """Predict time, memory, layouts and cost of a training: {"layers": 24, "hidden": 2048, "nodes": 2}."""
        return self._api.plan(**fields)

    def nodes(self) -> Any:
        """List the nodes with their hardware and free slots."""
        return self._api.nodes()

    def budget(self) -> Any:
        """Return how many runs and GPU hours may be started, and how many are used."""
        return {
            "runs": self._budget.runs,
            "runs_used": len(self._budget.started()),
            "gpu_hours": self._budget.gpu_hours,
            "gpu_hours_used": self._budget.spent(self._read),
        }

    def launch(self, experiment: str, hours_each: float | None = None, version: int | None = None) -> Any:
        """Launch the points of a configuration that have no run, if the budget allows them for `hours_each` hours.

        Without `hours_each` it is the configuration's time limit, which may not be longer than that. Runs beyond the
        budget of their project wait for a maintainer.
        """
        found = self._api.experiment(experiment)
        versions = found.configurations()
        config = next((each for each in versions if version in (None, each["version"])), None)
        if config is None:
            raise Refusal(f"{experiment} has no version {version}; use one of {[each['version'] for each in versions]}")
        hours = _hours(config, hours_each)
        points = int(config["points"]) - int(config["invalid_points"])
        gpus = _largest(config, "cluster.nodes") * _largest(config, "cluster.gpus_per_node")
        self._budget.check(points, gpus, hours, self._read)
        runs = found.launch(config["version"])
        self._budget.add([Started(run.slug, run.number, gpus, hours) for run in runs])
        waiting = {"needs_approval": "a maintainer decides in the inbox"} if runs.needs_approval else {}
        return {"launched": [f"{run.slug}:{run.number}" for run in runs], **waiting, **self.budget()}

    def cancel(self, run: str) -> Any:
        """Cancel a run that was launched here; others are left to their people."""
        found = self._run(run)
        if (found.slug, found.number) not in [(each.experiment, each.number) for each in self._budget.started()]:
            raise Refusal(f"run {run} was not launched by this agent; ask a person to cancel it")
        return {"run": run, "state": found.cancel().state}

    def _run(self, name: str) -> Run:
        return self._api.run(name)

    def _read(self, experiment: str, number: int) -> Mapping[str, Any]:
        return self._api.run(experiment, number).data


def _hours(config: Mapping[str, Any], asked: float | None) -> float:
    """Return the hours that each run of a configuration may take; raises Refusal where its own limit is longer."""
    limit = _largest(config, "launcher.timeout_s") / 3600
    if asked is None:
        return limit
    if not limit <= asked <= _MOST_HOURS:
        raise Refusal(
            f"hours_each {asked:g} is less than the time limit of the runs, {limit:.3g} h (launcher.timeout_s), or more"
            f" than {_MOST_HOURS}; state {limit:.3g} or more, or a version with a shorter limit"
        )
    return asked


def _largest(config: Mapping[str, Any], field: str) -> int:
    """Return the largest value of a field, like cluster.nodes, among the points of a configuration."""
    section, _, name = field.partition(".")
    values = [config["data"].get(section, {}).get(name)]
    for axis, points in config["sweep"].items():
        names = [part.strip() for part in axis.split(",")]
        if field in names and isinstance(points, list):
            place = names.index(field)
            values = [point[place] if len(names) > 1 else point for point in points]
    return max((int(value) for value in values if isinstance(value, int)), default=1)


def _row(data: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    return {name: _value(data, name) for name in (*_COLUMNS, *columns)}


def _value(data: Mapping[str, Any], name: str) -> Any:
    kind, _, key = name.partition(".")
    tables = {"params": "parameters", "metrics": "metrics"}
    return (data.get(tables[kind]) or {}).get(key) if kind in tables else data.get(name)
