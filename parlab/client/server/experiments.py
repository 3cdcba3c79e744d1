"""Experiments, runs and studies of a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from parlab.client.http import Connection
from parlab.client.server.files import download, upload
from parlab.client.server.frames import Series, frame
from parlab.client.server.resources import Resource

WAIT_S = 25.0
RUNS_AT_ONCE = 100
"""Runs whose series are read with one request; their names are part of its address."""
_COLUMNS = ("steps", "times", "values")
FINAL = ("finished", "oom", "failed", "cancelled", "lost", "checkpointed", "time-limit", "preempted")
STUDY_FINAL = ("finished", "failed", "cancelled")


class Experiment(Resource):
    """One experiment."""

    def __init__(self, connection: Connection, slug: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/experiments/{quote(slug, safe='')}/", data)
        self.slug = slug

    def __repr__(self) -> str:
        return f"<Experiment {self.slug}>"

    def runs(self, state: str = "") -> list[Run]:
        """Return the runs by number."""
        path = f"{self.path}runs/?state={quote(state)}" if state else f"{self.path}runs/"
        return [Run(self._connection, self.slug, data["number"], data) for data in self._connection.rows(path)]

    def run(self, number: int) -> Run:
        """Return one run."""
        return Run(self._connection, self.slug, number).refresh()

    def configurations(self) -> list[dict[str, Any]]:
        """Return the versions of the configuration, newest first."""
        return list(self._connection.json("GET", f"{self.path}configurations/"))

    def configure(
        self,
        data: Mapping[str, Any],
        sweep: Mapping[str, Any] | None = None,
        *,
        note: str = "",
        dry_run: bool = False,
        based_on: str | None = None,
    ) -> dict[str, Any]:
        """Save a version of the configuration, or only validate it.

        `based_on` is the digest of the newest version that you have seen, by default of the newest one now. Raises
        Refused (status 412) if somebody has saved another one since.
        """
        body = {"data": data, "sweep": sweep or {}, "note": note, "dry_run": dry_run}
        if not dry_run:
            body["based_on"] = self._digest(None) if based_on is None else based_on
        return dict(self._connection.json("POST", f"{self.path}configurations/", body))

    def launch(self, version: int | None = None, digest: str | None = None) -> Launched:
        """Launch the points of a configuration that have no run yet; return the new runs.

        `digest` is that of the configuration that you mean, as `configure` returns it, by default of the stored one.
        Raises Refused (status 412) if the version has another one by now. `needs_approval` of the answer is whether the
        runs wait for a maintainer.
        """
        asked = {"version": version, "digest": self._digest(version) if digest is None else digest}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        answer = self._connection.json("POST", f"{self.path}launch/?{query}")
        runs = (Run(self._connection, self.slug, number).refresh() for number in answer["created"])
        return Launched(runs, needs_approval=bool(answer.get("needs_approval")))

    def _digest(self, version: int | None) -> str:
        rows = [row for row in self.configurations() if version in (None, row["version"])]
        return str(rows[0].get("digest", "")) if rows else ""

    def clone(self) -> Experiment:
        """Copy the newest configuration into a new experiment, without runs."""
        return Experiment(self._connection, self.send("POST", "clone/")["slug"]).refresh()

    def shelf(self) -> dict[str, Any]:
        """Return tags, and whether the experiment is archived."""
        return self.send("GET", "shelf/")

    def tag(self, *tags: str) -> list[str]:
        """Set all tags of the experiment; return them."""
        return list(self.send("PATCH", "shelf/", {"tags": list(tags)})["tags"])

    def archive(self, is_archived: bool = True) -> None:
        """Archive the experiment, or with False restore it."""
        self.send("PATCH", "shelf/", {"archived": is_archived})

    def names(self) -> dict[str, Any]:
        """Return what the names of reported metrics and parameters mean."""
        return self.send("GET", "names/")

    def choose_names(
        self, metrics: Mapping[str, str | None] | None = None, settings: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """Choose what names mean: a meaning, "" for none, or None for the guess."""
        return self.send("PATCH", "names/", {"metrics": dict(metrics or {}), "settings": dict(settings or {})})

    def comments(self) -> list[dict[str, Any]]:
        """Return the comments on the experiment and its findings, oldest first."""
        return list(self._connection.json("GET", f"{self.path}comments/"))

    def comment(self, text: str, *, finding: int | None = None) -> dict[str, Any]:
        """Add a comment to the experiment, or to one of its findings."""
        return self.send("POST", "comments/", {"text": text, "finding": finding})

    def edit_comment(self, comment: int, text: str) -> dict[str, Any]:
        """Change a comment of one's own, by its ID."""
        return self.send("PATCH", f"comments/{comment}/", {"text": text})

    def delete_comment(self, comment: int) -> None:
        """Delete a comment of one's own, by its ID."""
        self.send("DELETE", f"comments/{comment}/")

    def advice(self) -> dict[str, Any]:
        """Return what to try next after a sweep: the advice for its fastest run."""
        return self.send("GET", "advice/")

    def pictures(self) -> list[dict[str, Any]]:
        """Return the pictures of the experiment."""
        return list(self._connection.rows(f"{self.path}pictures/"))

    def add_picture(self, path: str | Path, *, caption: str = "", run: int | None = None) -> dict[str, Any]:
        """Add a picture (PNG, JPEG or WebP) to the experiment, or to one of its runs."""
        fields = {"caption": caption, "run": "" if run is None else str(run)}
        return dict(upload(self._connection, f"{self.path}pictures/", Path(path), fields))

    def download_picture(self, picture: int, target: str | Path) -> Path:
        """Store a picture, by its ID, in a file; return the file."""
        return download(self._connection, f"{self.path}pictures/{picture}/", target)

    def delete_picture(self, picture: int) -> None:
        """Delete a picture, by its ID."""
        self.send("DELETE", f"pictures/{picture}/")

    def download_source(self, source: int, target: str | Path) -> Path:
        """Store an imported file, by its ID in `data["sources"]`, in a file; return the file."""
        return download(self._connection, f"{self.path}sources/{source}/", target)

    def frame(self, library: str | None = None) -> Any:
        """Return the runs as a frame of polars or pandas: a row per run, with its parameters and last metrics."""
        return found_runs(self._connection, experiment=self.slug).frame(library)


class Run(Resource):
    """One run; `refresh` adds summary and configuration."""

    def __init__(self, connection: Connection, slug: str, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/experiments/{quote(slug, safe='')}/runs/{number}/", data)
        self.slug, self.number = slug, number

    def __repr__(self) -> str:
        return f"<Run {self.number} of {self.slug}: {self.data.get('state', 'unknown')}>"

    @property
    def state(self) -> str:
        return str(self.data.get("state", ""))

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINAL

    def wait(self, timeout_s: float | None = None) -> Run:
        """Wait until the run has ended; raises TimeoutError after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest_s = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - time.monotonic()))
            answer = self._connection.json("GET", f"{self.path}wait/?timeout={rest_s:.3f}")
            if answer["is_final"]:
                return self.refresh()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.number} of {self.slug} is {answer['state']} after {timeout_s} s")

    def cancel(self) -> Run:
        """Cancel the run."""
        self._connection.json("POST", f"{self.path}cancel/")
        return self.refresh()

    def end_chain(self) -> Run:
        """Make the current attempt of a chain the last one."""
        self._connection.json("POST", f"{self.path}end-chain/")
        return self.refresh()

    def relaunch(self) -> Run:
        """Start the next attempt of a run that has ended."""
        self._connection.json("POST", f"{self.path}relaunch/")
        return self.refresh()

    def marks(self) -> dict[str, Any]:
        """Return tags, users who starred the run, and note."""
        return self.send("GET", "marks/")

    def mark(self, **changes: Any) -> dict[str, Any]:
        """Change `tags` (all that the run shall have), `starred` or `note`."""
        return self.send("PATCH", "marks/", changes)

    def archive(self, is_archived: bool = True) -> None:
        """Archive a run that has ended, or with False restore it."""
        self.send("PATCH", "shelf/", {"archived": is_archived})

    def delete(self) -> None:
        """Delete a run that has ended, with everything recorded about it."""
        self.send("DELETE", "shelf/")

    def log(self, position: int = 0) -> bytes:
        """Return the raw output from a position."""
        pieces: list[bytes] = []
        while True:
            output, headers = self._connection.request("GET", f"{self.path}log/?from={position}")
            position = int(headers["Parlab-Next"])
            if not output:
                return b"".join(pieces)
            pieces.append(output)

    def find(self, text: str = "", *, errors: bool = False) -> list[dict[str, Any]]:
        """Return number and text of the lines of the log that contain a text, or that look like errors."""
        query = "errors=true" if errors else f"text={quote(text, safe='')}"
        return list(self._connection.json("GET", f"{self.path}log/search/?{query}")["lines"])

    def difference(self, other: str | int) -> dict[str, Any]:
        """Return what differs from another run: `7`, `other-experiment/7`, `attempt-1` or `v2`."""
        return dict(self._connection.json("GET", f"{self.path}difference/?with={quote(str(other), safe='')}"))

    def metrics(self) -> list[dict[str, Any]]:
        """Return name, rank and length of the series."""
        return list(self._connection.json("GET", f"{self.path}metrics/")["series"])

    def series(
        self,
        metric: str,
        *,
        rank: int | None = None,
        points: int | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Series:
        """Return one metric, whole, or thinned to at most `points` points per rank."""
        choices = {"rank": rank, "points": points, "from": first_step, "to": last_step}
        query = {"metric": metric, **{name: value for name, value in choices.items() if value is not None}}
        return Series(self._connection, f"{self.path}series/?{urlencode(query)}", metric)

    def reported(self) -> dict[str, Any]:
        """Return parameters, tags and artifacts of a reported run."""
        return dict(self._connection.json("GET", f"{self.path}reported/"))

    def artifacts(self) -> list[dict[str, Any]]:
        """Return path, size and digest of the artifacts."""
        return list(self.reported()["artifacts"])

    def download(self, artifact: str, target: str | Path) -> Path:
        """Store an artifact in a file; return the file."""
        return download(self._connection, f"{self.path}artifacts/{quote(artifact)}", target)

    def advice(self) -> dict[str, Any]:
        """Return what to change, with predicted gains, and what was tried."""
        return self.send("GET", "advice/")

    def try_advice(self, *titles: str) -> list[Run]:
        """Launch the run with changes of its advice, by their titles; return the new runs."""
        numbers = self.send("POST", "advice/", {"titles": list(titles)})["created"]
        return [Run(self._connection, self.slug, number).refresh() for number in numbers]

    def traces(self) -> dict[str, Any]:
        """Return the traced ranks: steps with their parts, kernels, who was late."""
        return self.send("GET", "traces/")

    def add_trace(self, path: str | Path) -> dict[str, Any]:
        """Add the profiler's trace of one rank; it replaces an earlier one of that rank."""
        return dict(upload(self._connection, f"{self.path}traces/", Path(path)))

    def delete_traces(self) -> None:
        """Delete the traces of all ranks."""
        self.send("DELETE", "traces/")

    def download_trace(self, target: str | Path) -> Path:
        """Store a Chrome trace of all ranks on one clock in a file (.json.gz); return the file."""
        return download(self._connection, f"{self.path}traces/export/", target)

    def draw(self) -> dict[str, Any]:
        """Let a worker draw the panels of the run; they become pictures of the experiment."""
        return self.send("POST", "pictures/")

    def drawings(self) -> list[dict[str, Any]]:
        """Return the drawings of the run, newest first, with their progress."""
        return list(self._connection.json("GET", f"{self.path}pictures/"))

    def goodput(self) -> dict[str, Any]:
        """Return where the wall time of the run went, over all attempts."""
        return self.send("GET", "goodput/")

    def slopes(self) -> list[dict[str, Any]]:
        """Return simulated warm-up slopes of a pipeline run."""
        return list(self._connection.json("GET", f"{self.path}schedule/"))

    def save_slope(self, code: str) -> dict[str, Any]:
        """Save a slope, by its `code`, as the next configuration; return its version and note."""
        return self.send("POST", "schedule/", {"code": code})

    def time(self) -> dict[str, Any]:
        """Return where the time of a step goes, measured and predicted."""
        return self.send("GET", "time/")


class Launched(list[Run]):
    """The new runs of a launch, and whether they wait for a maintainer: they are beyond the project's budget."""

    def __init__(self, runs: Iterable[Run], *, needs_approval: bool) -> None:
        super().__init__(runs)
        self.needs_approval = needs_approval


class Runs(list[Run]):
    """Runs of any experiments; `frame` and `series` read those of all in few requests."""

    def __init__(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(Run(connection, row["experiment"], row["number"], row) for row in rows)
        self._connection = connection

    def frame(self, library: str | None = None) -> Any:
        """Return a frame of polars or pandas, with columns for parameters, last metrics and kinds of numbers."""
        return frame([flat_row(run.data) for run in self], library)

    def series(self, *metrics: str, points: int = 1_000, rank: int | None = None) -> dict[tuple[str, int, str], Any]:
        """Return {(experiment, number, metric): {rank: {"steps", "times", "values"}}} of all runs."""
        answers: dict[tuple[str, int, str], Any] = {}
        for first in range(0, len(self), RUNS_AT_ONCE):
            part = self[first : first + RUNS_AT_ONCE]
            query: list[tuple[str, Any]] = [("run", f"{run.slug}:{run.number}") for run in part]
            query += [*(("metric", metric) for metric in metrics), ("points", points)]
            query += [] if rank is None else [("rank", rank)]
            for item in self._connection.json("GET", f"/api/series/?{urlencode(query)}")["series"]:
                slug, _, number = item["run"].rpartition(":")
                ranks = {each["rank"]: {name: each[name] for name in _COLUMNS} for each in item["ranks"]}
                answers[slug, int(number), item["metric"]] = ranks
        return answers


def found_runs(connection: Connection, *, filter: str = "", experiment: str = "") -> Runs:
    """Return the runs that match a filter, newest first, of one experiment or of all."""
    query = urlencode({name: value for name, value in (("filter", filter), ("experiment", experiment)) if value})
    return Runs(connection, connection.rows(f"/api/runs/?{query}" if query else "/api/runs/"))


_SPREAD = {"parameters": "params", "metrics": "metrics", "kinds": "kinds"}
"""Dictionaries of a run whose entries are columns -> what their names begin with, as in filters."""


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose parameters, metrics and kinds of numbers are columns: `params.lr`, `kinds.step_time_s`."""
    flat = {name: value for name, value in row.items() if name not in _SPREAD}
    for name, prefix in _SPREAD.items():
        flat.update({f"{prefix}.{key}": value for key, value in (row.get(name) or {}).items()})
    return flat


class Study(Resource):
    """One study of the tuner."""

    def __init__(self, connection: Connection, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(connection, f"/api/studies/{number}/", data)
        self.number = number

    def __repr__(self) -> str:
        return f"<Study {self.number}: {self.data.get('state', 'unknown')}>"

    def act(self, action: str) -> Study:
        """Pause, resume or cancel the study."""
        self.data = dict(self._connection.json("POST", self.path, {"action": action}))
        return self

    def wait(self, timeout_s: float | None = None, every_s: float = 2.0) -> Study:
        """Wait until the study has ended; raises TimeoutError after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.refresh().data["state"] not in STUDY_FINAL:
            if deadline is not None and time.monotonic() + every_s > deadline:
                raise TimeoutError(f"study {self.number} is {self.data['state']} after {timeout_s} s")
            time.sleep(every_s)
        return self

    def frame(self, library: str | None = None) -> Any:
        """Return the trials as a frame of polars or pandas."""
        return frame(self.data.get("trials") or self.refresh().data["trials"], library)
