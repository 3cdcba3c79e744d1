"""`parlab.Api`: a server with its experiments, runs and studies as objects, and as frames of polars or pandas."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from parlab.client.http import Connection
from parlab.client.server.account import Account
from parlab.client.server.decisions import Decisions
from parlab.client.server.experiments import Experiment, Run, Runs, Study, found_runs
from parlab.client.server.files import upload
from parlab.client.server.packing import pack
from parlab.client.settings import settings

logger = logging.getLogger("parlab")


class Api(Decisions, Account):
    """A server. Address and token are those of `parlab.init`: arguments, PARLAB_URL and PARLAB_TOKEN, `parlab login`.

    Methods raise `Unreachable` where the server does not answer, and `Refused` with its message where it refuses.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        login = settings(url, token)
        self.connection = Connection(login.url, login.token)

    def experiments(self, query: str = "") -> list[Experiment]:
        """Return the experiments, newest first; `query`: words in name or question."""
        path = f"/api/experiments/?q={quote(query)}" if query else "/api/experiments/"
        return [Experiment(self.connection, data["slug"], data) for data in self.connection.rows(path)]

    def experiment(self, slug: str) -> Experiment:
        """Return one experiment."""
        return Experiment(self.connection, slug).refresh()

    def create_experiment(self, name: str, question: str = "") -> Experiment:
        """Create an experiment."""
        data = self.connection.json("POST", "/api/experiments/", {"name": name, "question": question})
        return self.experiment(data["slug"])

    def runs(self, filter: str = "", *, experiment: str = "") -> Runs:
        """Return the runs that match a filter, newest first: `api.runs("loss < 2 and params.lr = 0.1")`.

        The language is that of MLflow; a name alone is a metric, or a field like `state` or `tokens_per_s`.
        """
        return found_runs(self.connection, filter=filter, experiment=experiment)

    def run(self, run: str, number: int | None = None) -> Run:
        """Return one run: by experiment and number, by `"experiment:number"`, or by the ID that its script knows."""
        slug, _, text = run.rpartition(":")
        if number is None and not (slug and text.isdecimal()):
            found = self.connection.json("GET", f"/api/runs/{quote(run, safe='')}/")
            slug, number = found["experiment"], found["number"]
        elif number is None:
            number = int(text)
        else:
            slug = run
        return Run(self.connection, slug, number).refresh()

    def studies(self) -> list[Study]:
        """Return the studies, newest first."""
        return [Study(self.connection, data["id"], data) for data in self.connection.json("GET", "/api/studies/")]

    def study(self, number: int) -> Study:
        """Return one study."""
        return Study(self.connection, number).refresh()

    def create_study(self, experiment: str, **options: Any) -> Study:
        """Create a study of an experiment; the options are those of `POST /api/studies/`."""
        data = self.connection.json("POST", "/api/studies/", {"experiment": experiment, **options})
        return Study(self.connection, data["id"], data)

    def plan(self, **question: Any) -> dict[str, Any]:
        """Plan a training; the fields are those of `POST /api/plan/`. Nothing is stored."""
        return dict(self.connection.json("POST", "/api/plan/", question))

    def import_path(
        self, path: str | Path, *, experiment: str = "", format: str = "", dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Import a file, or a directory as an archive; return what was imported, or with `dry_run` would be."""
        path = Path(path)
        fields = {"experiment": experiment, "format": format, "dry_run": "true" if dry_run else "false"}
        with tempfile.TemporaryDirectory(prefix="parlab-import-") as directory:
            if path.is_dir():
                # The archive holds the directory itself, because stores of trackers are recognised by its name.
                archive = Path(directory, f"{path.resolve().name or 'directory'}.tar.gz")
                links = pack(path, archive)
                if links:
                    logger.warning("%d links in %s are skipped, the first is %s", len(links), path, links[0])
                path = archive
            answer = upload(self.connection, "/api/imports/", path, fields)
        return list(answer["imports"])

    def guess_format(self, path: str | Path) -> dict[str, Any]:
        """Guess the format of a log that no reader knows; `definition` can be saved with `save_format`."""
        return dict(upload(self.connection, "/api/imports/guess/", Path(path)))

    def formats(self) -> list[dict[str, Any]]:
        """Return the log formats of the team."""
        return list(self.connection.json("GET", "/api/formats/"))

    def format(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Return a log format with its definition, by default the newest version."""
        query = "" if version is None else f"?version={version}"
        return dict(self.connection.json("GET", f"/api/formats/{quote(name, safe='')}/{query}"))

    def save_format(self, name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
        """Save a definition as the next version of a log format."""
        return dict(self.connection.json("PUT", f"/api/formats/{quote(name, safe='')}/", dict(definition)))

    def delete_format(self, name: str) -> None:
        """Delete a log format; runs that were read with it stay."""
        self.connection.json("DELETE", f"/api/formats/{quote(name, safe='')}/")

    def advice_score(self) -> dict[str, Any]:
        """Return how good all tried advice was, by kind, with every trial."""
        return dict(self.connection.json("GET", "/api/advice/"))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes with their hardware and slots."""
        return list(self.connection.json("GET", "/api/nodes/"))

    def node(self, name: str, action: str = "", reason: str = "") -> dict[str, Any]:
        """Return a node with its health, after an action: `measure`, `leave-out` with a reason, `put-back`."""
        path = f"/api/nodes/{quote(name, safe='')}/"
        body = {"action": action, "reason": reason} if action else None
        return dict(self.connection.json("POST" if action else "GET", path, body))

    def questions(self) -> list[dict[str, Any]]:
        """Return the questions about a cluster with their inputs."""
        return list(self.connection.json("GET", "/api/questions/"))

    def ask(self, key: str, **inputs: Any) -> Experiment:
        """Ask a question: launch the experiment that answers it."""
        answer = self.connection.json("POST", f"/api/questions/{quote(key, safe='')}/", inputs)
        return self.experiment(answer["experiment"])

    def read_configuration(self, text: str) -> dict[str, Any]:
        """Read a command line, or a configuration as JSON, into values by `section__field`."""
        return dict(self.connection.json("POST", "/api/configurations/read/", {"text": text}))
