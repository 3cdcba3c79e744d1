"""`parlab.Api`: experiments, runs, series and studies of a server as objects, and as frames of polars or pandas."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from runners.client.http import Connection
from runners.client.resources import Dashboard, Report, Resource, Watch
from runners.client.settings import settings

PAGE_SIZE = 1_000
WAIT_S = 25.0
FINAL = ("finished", "oom", "failed", "cancelled", "lost")
STUDY_FINAL = ("finished", "failed", "cancelled")
_LIBRARIES = ("polars", "pandas")


class Api:
    """A server. Address and token are those of `parlab.init`: arguments, PARLAB_URL and PARLAB_TOKEN, `parlab login`.

    Methods raise `Unreachable` where the server does not answer, and `Refused` with its message where it refuses.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        login = settings(url, token)
        self.connection = Connection(login.url, login.token)

    def experiments(self, query: str = "") -> list[Experiment]:
        """Return the experiments, newest first; `query`: words in name or question."""
        path = f"/api/experiments/?q={quote(query)}" if query else "/api/experiments/"
        return [Experiment(self, data["slug"], data) for data in self.pages(path)]

    def experiment(self, slug: str) -> Experiment:
        """Return one experiment."""
        return Experiment(self, slug).refresh()

    def create_experiment(self, name: str, question: str = "") -> Experiment:
        """Create an experiment."""
        data = self.connection.json("POST", "/api/experiments/", {"name": name, "question": question})
        return self.experiment(data["slug"])

    def run(self, slug: str, number: int) -> Run:
        """Return one run."""
        return Run(self, slug, number).refresh()

    def studies(self) -> list[Study]:
        """Return the studies, newest first."""
        return [Study(self, data["id"], data) for data in self.connection.json("GET", "/api/studies/")]

    def study(self, number: int) -> Study:
        """Return one study."""
        return Study(self, number).refresh()

    def create_study(self, experiment: str, **options: Any) -> Study:
        """Create a study of an experiment; the options are those of `POST /api/studies/`."""
        data = self.connection.json("POST", "/api/studies/", {"experiment": experiment, **options})
        return Study(self, data["id"], data)

    def plan(self, **question: Any) -> dict[str, Any]:
        """Plan a training; the fields are those of `POST /api/plan/`. Nothing is stored."""
        return dict(self.connection.json("POST", "/api/plan/", question))

    def findings(self, **filters: Any) -> list[dict[str, Any]]:
        """Return findings, newest first: findings(experiment="bert", open=True)."""
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in filters.items()}
        return list(self.pages(f"/api/findings/?{urlencode(texts)}" if texts else "/api/findings/"))

    def acknowledge(self, finding: int, reason: str) -> dict[str, Any]:
        """Acknowledge a finding, by its ID, with a reason."""
        return dict(self.connection.json("PUT", f"/api/findings/{finding}/acknowledgement/", {"reason": reason}))

    def reopen(self, finding: int) -> dict[str, Any]:
        """Withdraw the acknowledgement of a finding."""
        return dict(self.connection.json("DELETE", f"/api/findings/{finding}/acknowledgement/"))

    def views(self) -> list[dict[str, Any]]:
        """Return the saved views of all pages."""
        return list(self.connection.json("GET", "/api/views/"))

    def save_view(self, name: str, address: str, *, is_default: bool = False) -> dict[str, Any]:
        """Save the path and query of a page under a name."""
        body = {"name": name, "address": address, "is_default": is_default}
        return dict(self.connection.json("POST", "/api/views/", body))

    def delete_view(self, view: int) -> None:
        """Delete a saved view, by its ID."""
        self.connection.json("DELETE", f"/api/views/{view}/")

    def dashboards(self) -> list[Dashboard]:
        """Return all dashboards by name."""
        return [
            Dashboard(self.connection, data["id"], data) for data in self.connection.json("GET", "/api/dashboards/")
        ]

    def create_dashboard(
        self, name: str, *, experiment: str | None = None, panels: Sequence[Mapping[str, str]] | None = None
    ) -> Dashboard:
        """Create a dashboard; each panel has `title`, `text`, `width` and `height`."""
        body = {"name": name, "experiment": experiment, **({} if panels is None else {"panels": list(panels)})}
        data = self.connection.json("POST", "/api/dashboards/", body)
        return Dashboard(self.connection, data["id"], data)

    def reports(self) -> list[Report]:
        """Return all reports, the last saved first."""
        return [Report(self.connection, data["slug"], data) for data in self.connection.json("GET", "/api/reports/")]

    def create_report(self, title: str, text: str = "", *, experiment: str | None = None) -> Report:
        """Create a report: Markdown with directives."""
        body = {"title": title, "text": text, "experiment": experiment}
        data = self.connection.json("POST", "/api/reports/", body)
        return Report(self.connection, data["slug"], data)

    def watches(self) -> list[Watch]:
        """Return all watches."""
        return [Watch(self.connection, data["id"], data) for data in self.connection.json("GET", "/api/watches/")]

    def create_watch(self, name: str, **options: Any) -> Watch:
        """Create a watch; the options are those of `POST /api/watches/`."""
        data = self.connection.json("POST", "/api/watches/", {"name": name, **options})
        return Watch(self.connection, data["id"], data)

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the webhooks and mails of the user."""
        return list(self.connection.json("GET", "/api/subscriptions/"))

    def subscribe(
        self, topics: Sequence[str], *, url: str = "", channel: str = "webhook", experiment: str | None = None
    ) -> dict[str, Any]:
        """Send events to a webhook, or to the mail address of the user with channel="mail"."""
        body = {"channel": channel, "topics": list(topics), "url": url, "experiment": experiment}
        return dict(self.connection.json("POST", "/api/subscriptions/", body))

    def change_subscription(self, subscription: int, **changes: Any) -> dict[str, Any]:
        """Change `topics`, `url` or `is_enabled` of a subscription, by its ID."""
        return dict(self.connection.json("PATCH", f"/api/subscriptions/{subscription}/", changes))

    def test_subscription(self, subscription: int) -> dict[str, Any]:
        """Send a test event; return its delivery."""
        return dict(self.connection.json("POST", f"/api/subscriptions/{subscription}/test/"))

    def unsubscribe(self, subscription: int) -> None:
        """Delete a subscription, by its ID."""
        self.connection.json("DELETE", f"/api/subscriptions/{subscription}/")

    def deliveries(self) -> list[dict[str, Any]]:
        """Return what was sent to the subscriptions of the user, newest first, with the last answer of each."""
        return list(self.connection.json("GET", "/api/deliveries/"))

    def retry_delivery(self, delivery: int) -> dict[str, Any]:
        """Send a failed delivery again, by its ID."""
        return dict(self.connection.json("POST", f"/api/deliveries/{delivery}/retry/"))

    def import_path(
        self, path: str | Path, *, experiment: str = "", format: str = "", dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Import a file, or a directory as an archive; return what was imported, or with `dry_run` would be."""
        path = Path(path)
        fields = {"experiment": experiment, "format": format, "dry_run": "true" if dry_run else "false"}
        with tempfile.TemporaryDirectory(prefix="parlab-import-") as directory:
            if path.is_dir():
                name = str(Path(directory, path.resolve().name or "directory"))
                # The archive holds the directory itself, because stores of trackers are recognised by its name.
                path = Path(shutil.make_archive(name, "gztar", path.resolve().parent, path.resolve().name))
            kind, body = _multipart({name: value for name, value in fields.items() if value}, path)
        with closing(self.connection.with_long_timeout()) as connection:
            answer, _ = connection.request("POST", "/api/imports/", body, {"Content-Type": kind})
        return list(json.loads(answer)["imports"])

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of all pages of a list."""
        number, joint = 1, "&" if "?" in path else "?"
        while True:
            answer = self.connection.json("GET", f"{path}{joint}page_size={PAGE_SIZE}&page={number}")
            yield from answer["results"]
            if not answer["next"]:
                return
            number += 1


class Experiment(Resource):
    """One experiment."""

    def __init__(self, api: Api, slug: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(api.connection, f"/api/experiments/{quote(slug, safe='')}/", data)
        self._api, self.slug = api, slug

    def __repr__(self) -> str:
        return f"<Experiment {self.slug}>"

    def runs(self, state: str = "") -> list[Run]:
        """Return the runs by number."""
        path = f"{self.path}runs/?state={quote(state)}" if state else f"{self.path}runs/"
        return [Run(self._api, self.slug, data["number"], data) for data in self._api.pages(path)]

    def run(self, number: int) -> Run:
        """Return one run."""
        return self._api.run(self.slug, number)

    def configurations(self) -> list[dict[str, Any]]:
        """Return the versions of the configuration, newest first."""
        return list(self._api.connection.json("GET", f"{self.path}configurations/"))

    def configure(
        self, data: Mapping[str, Any], sweep: Mapping[str, Any] | None = None, *, note: str = "", dry_run: bool = False
    ) -> dict[str, Any]:
        """Save a version of the configuration, or only validate it."""
        body = {"data": data, "sweep": sweep or {}, "note": note, "dry_run": dry_run}
        return dict(self._api.connection.json("POST", f"{self.path}configurations/", body))

    def launch(self, version: int | None = None) -> list[Run]:
        """Launch the points of a configuration that have no run yet; return the new runs."""
        query = "" if version is None else f"?version={version}"
        answer = self._api.connection.json("POST", f"{self.path}launch/{query}")
        return [Run(self._api, self.slug, number).refresh() for number in answer["created"]]

    def clone(self) -> Experiment:
        """Copy the newest configuration into a new experiment, without runs."""
        return self._api.experiment(self.send("POST", "clone/")["slug"])

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
        return list(self._api.connection.json("GET", f"{self.path}comments/"))

    def comment(self, text: str, *, finding: int | None = None) -> dict[str, Any]:
        """Add a comment to the experiment, or to one of its findings."""
        return self.send("POST", "comments/", {"text": text, "finding": finding})

    def edit_comment(self, comment: int, text: str) -> dict[str, Any]:
        """Change a comment of one's own, by its ID."""
        return self.send("PATCH", f"comments/{comment}/", {"text": text})

    def delete_comment(self, comment: int) -> None:
        """Delete a comment of one's own, by its ID."""
        self.send("DELETE", f"comments/{comment}/")

    def frame(self, library: str | None = None) -> Any:
        """Return the runs as a frame of polars or pandas, one row per run."""
        return frame([run.data for run in self.runs()], library)


class Run(Resource):
    """One run; `refresh` adds summary and configuration."""

    def __init__(self, api: Api, slug: str, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(api.connection, f"/api/experiments/{quote(slug, safe='')}/runs/{number}/", data)
        self._api, self.slug, self.number = api, slug, number

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
            answer = self._api.connection.json("GET", f"{self.path}wait/?timeout={rest_s:.3f}")
            if answer["is_final"]:
                return self.refresh()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.number} of {self.slug} is {answer['state']} after {timeout_s} s")

    def cancel(self) -> Run:
        """Cancel the run."""
        self._api.connection.json("POST", f"{self.path}cancel/")
        return self.refresh()

    def relaunch(self) -> Run:
        """Start the next attempt of a run that has ended."""
        self._api.connection.json("POST", f"{self.path}relaunch/")
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
            output, headers = self._api.connection.request("GET", f"{self.path}log/?from={position}")
            position = int(headers["Parlab-Next"])
            if not output:
                return b"".join(pieces)
            pieces.append(output)

    def metrics(self) -> list[dict[str, Any]]:
        """Return name, rank and length of the series."""
        return list(self._api.connection.json("GET", f"{self.path}metrics/")["series"])

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
        return Series(self._api, f"{self.path}series/?{urlencode(query)}", metric)

    def reported(self) -> dict[str, Any]:
        """Return parameters, tags and artifacts of a reported run."""
        return dict(self._api.connection.json("GET", f"{self.path}reported/"))

    def artifacts(self) -> list[dict[str, Any]]:
        """Return path, size and digest of the artifacts."""
        return list(self.reported()["artifacts"])

    def download(self, artifact: str, target: str | Path) -> Path:
        """Store an artifact in a file; return the file."""
        content, _ = self._api.connection.request("GET", f"{self.path}artifacts/{quote(artifact)}")
        target = Path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target


class Series:
    """The points of one metric of a run; they are read when they are asked for."""

    def __init__(self, api: Api, path: str, metric: str) -> None:
        self._api, self._path, self.metric = api, path, metric

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns rank, step, time (Unix seconds) and value."""
        rows = csv.reader(io.StringIO(self.csv().decode()))
        names = next(rows)
        values = list(zip(*rows)) or [()] * len(names)
        kinds = (int, int, float, float)
        return {name: [kind(text) for text in column] for name, column, kind in zip(names, values, kinds)}

    def csv(self) -> bytes:
        """Return the points as CSV."""
        return self._api.connection.request("GET", f"{self._path}&as=csv")[0]

    def arrow(self) -> bytes:
        """Return the points as an Arrow IPC stream."""
        return self._api.connection.request("GET", f"{self._path}&as=arrow")[0]

    def frame(self, library: str | None = None) -> Any:
        """Return the points as a frame of polars or pandas with the columns rank, step, time and value."""
        module = frames(library)
        if module.__name__ == "polars":
            return module.read_ipc_stream(io.BytesIO(self.arrow()))
        types = {"rank": "int32", "step": "int64", "time": "float64", "value": "float64"}
        # Its reader of CSV rounds floats differently from version to version.
        return module.DataFrame(self.columns()).astype(types)


class Study(Resource):
    """One study of the tuner."""

    def __init__(self, api: Api, number: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(api.connection, f"/api/studies/{number}/", data)
        self._api, self.number = api, number

    def __repr__(self) -> str:
        return f"<Study {self.number}: {self.data.get('state', 'unknown')}>"

    def act(self, action: str) -> Study:
        """Pause, resume or cancel the study."""
        self.data = dict(self._api.connection.json("POST", self.path, {"action": action}))
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


def frames(library: str | None = None) -> Any:
    """Import polars or pandas, whichever is named or else installed."""
    if library is not None and library not in _LIBRARIES:
        raise ValueError(f"library {library!r} has no frames; use polars or pandas")
    for name in (library,) if library else _LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ImportError(f"frames need {library or 'polars or pandas'}: pip install {library or 'polars'}")


def frame(rows: Sequence[Mapping[str, Any]], library: str | None = None) -> Any:
    """Return rows as a frame; values that are no scalars become JSON."""
    module = frames(library)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_scalar(row.get(name)) for row in rows] for name in names}
    return module.DataFrame(columns, strict=False) if module.__name__ == "polars" else module.DataFrame(columns)


def _scalar(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _multipart(fields: Mapping[str, str], path: Path) -> tuple[str, bytes]:
    """Return content type and body of a form with one file."""
    boundary = uuid.uuid4().hex
    name = path.name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
        for field, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    parts += [f"{head}Content-Type: application/octet-stream\r\n\r\n".encode(), path.read_bytes(), b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])
