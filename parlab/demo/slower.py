"""The watch of the demo: a small repository with a training that one commit makes slower, and runs of each commit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from parlab.lab.models import Experiment
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.watch import services as watches
from parlab.watch.commits import log_of, mirror_of
from parlab.watch.models import Watch
from parlab.watch.ordering import order_place
from parlab.watch.triggers import commits_store

NAME = "A training that gets slower"
BASE_RUNS = 8
"""Runs of the first commit; the detection needs six before a change."""
RUNS = 2
"""Runs of each further commit."""
TRAINING = '''"""A training of a linear model without dependencies; prints a line per step that parlab reads."""
import json
import time

STEPS, WARMUP, ROWS, COLUMNS = 14, 4, 60, 60
REPEATS = {repeats}  # passes over the batch in each step
data = [[(7 * row + 3 * column) % 11 / 11 for column in range(COLUMNS)] for row in range(ROWS)]
weights = [0.0] * COLUMNS


def step():
    loss = 0.0
    for _ in range(REPEATS):
        for row in data:
            error = sum(value * weight for value, weight in zip(row, weights)) - 1.0
            loss = error * error
            for column, value in enumerate(row):
                weights[column] -= 1e-4 * error * value
    return loss


for number in range(1, STEPS + 1):
    # Processor time: other programs of this machine count less than in wall time.
    began = time.process_time()
    loss = step()
    line = {{"parlab": 1, "t": round(time.time(), 3), "rank": 0, "event": "step", "step": number,
            "warmup": number <= WARMUP, "step_time_s": time.process_time() - began, "samples": ROWS, "loss": loss}}
    print(json.dumps(line, separators=(",", ":")), flush=True)
'''
COMMITS = (
    ("Add the training", 40, ""),
    ("Describe the training", 40, "A linear model."),
    ("Explain the learning rate", 40, "The learning rate is 1e-4."),
    ("Visit each batch more often", 80, "Each batch is visited more often."),
    ("Fix a typo", 80, "Each batch is visited 80 times."),
    ("Add a license", 80, "Licensed under MIT."),
)
"""Subject, passes over a batch per step, and text of the README; the fourth makes each step twice as long."""
SLOW = 3


def directory() -> Path:
    return Path(settings.DATA_DIR) / "demo_trainer"


def command(commit: str = "main") -> list[str]:
    """Return the command that runs the training at a commit."""
    script = str(Path(settings.BASE_DIR) / "runners" / "at_commit.py")
    cache = str(Path(settings.DATA_DIR) / "worktrees")
    where = ["--repository", str(directory()), "--cache", cache, "--run", "python train.py"]
    return [sys.executable, "-P", script, *where, "--commit", commit]


def data() -> dict[str, Any]:
    return {"parallel": {"engine": "command"}, "launcher": {"kind": "plain"}, "command": {"argv": command()}}


def repository_create() -> list[str]:
    """Create the repository unless it exists; return its commits, oldest first. Raise ValueError without git."""
    path = directory()
    try:
        if not (path / ".git").exists():
            path.mkdir(parents=True, exist_ok=True)
            _git(["init", "--quiet", "--initial-branch", "main"])
            for subject, repeats, text in COMMITS:
                (path / "train.py").write_text(TRAINING.format(repeats=repeats))
                (path / "README").write_text(f"{text}\n")
                _git(["add", "--all"])
                _git(["commit", "--quiet", "--message", subject])
        return _git(["rev-list", "--reverse", "main"]).split()
    except FileNotFoundError as error:
        raise ValueError("git is not installed; install it to run the demo of a watch") from error
    except subprocess.CalledProcessError as error:
        raise ValueError(f"git cannot create {path}: {error.stderr.strip()[:200]}; delete the directory") from error


def _git(arguments: Sequence[str]) -> str:
    own = ["git", "-C", str(directory()), "-c", "user.name=parlab demo", "-c", "user.email=demo@example.org"]
    done = subprocess.run([*own, "-c", "commit.gpgsign=false", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def watch_start(user: User) -> Watch:
    """Create repository, experiment and watch, and order the runs of all commits; a second call orders nothing."""
    existing = Watch.objects.filter(name=NAME).first()
    if existing is not None:
        return existing
    shas = repository_create()
    with transaction.atomic():
        experiment = Experiment.objects.filter(name=NAME).first() or experiment_create(
            name=NAME,
            question="Which commit of a small repository made the training slower?",
            notes="A repository that the demo created: its fourth commit makes each step twice as long.",
            owner=user,
        )
        config = config_save(experiment=experiment, data=data(), sweep={}, note="The newest commit.", user=user)
        watch = watches.watch_create(
            name=NAME, user=user, config=config, repository=str(directory()), branch="main", repeats=RUNS
        )
        commits_store(watch=watch, log=log_of(watch.repository, watch.branch, mirror_of(watch.pk)))
        for number, sha in enumerate(shas):
            subject = COMMITS[number][0] if number < len(COMMITS) else sha[:10]
            order_place(watch=watch, count=RUNS if number else BASE_RUNS, reason=f"commit {subject}", commit=sha)
    return watch
