"""Commits of a watched git repository, read with git itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from .repository_addresses import check_repository, git_settings

OPTION = "--commit"
"""The argument of a command that is followed by the commit to run; see runners/node/launch/at_commit.py."""
MAX_COMMITS = 2_000
TIMEOUT_S = 120


class GitCommit(NamedTuple):
    sha: str
    at: datetime
    author: str
    subject: str


def log_of(address: str, branch: str, directory: Path) -> list[GitCommit]:
    """Return the commits of a branch, oldest first, from a copy that is brought up to date; raise ValueError."""
    reached = git_settings(check_repository(address))
    if branch.startswith("-") or not re.fullmatch(r"[\w./-]{0,200}", branch):
        raise ValueError(f"branch {branch[:80]!r} is no name of a branch; use for example main")
    if not (directory / "HEAD").exists():
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _git(["clone", "--quiet", "--bare", "--filter=blob:none", "--", address, str(directory)], reached)
    refs = "+refs/heads/*:refs/heads/*"
    _git(["-C", str(directory), "fetch", "--quiet", "--prune", "--update-head-ok", address, refs], reached)
    form = "%H%x1f%ct%x1f%an%x1f%s"
    reference = f"refs/heads/{branch}" if branch else "HEAD"
    listing = _git(
        [
            "-C",
            str(directory),
            "log",
            "--first-parent",
            "--reverse",
            f"--max-count={MAX_COMMITS}",
            f"--format={form}",
            reference,
        ],
        reached,
    )
    commits = []
    for line in listing.splitlines():
        sha, at, author, subject = [*line.split("\x1f", 3), "", "", "", ""][:4]
        if at.isdecimal():
            commits.append(GitCommit(sha, datetime.fromtimestamp(int(at), UTC), author[:200], subject[:300]))
    return commits


class FileChange(NamedTuple):
    path: str
    added: int | None
    """Lines; None for a binary file."""
    removed: int | None


class CommitChange(NamedTuple):
    """What a commit changed, against its first parent."""

    files: list[FileChange]
    text: str
    """The diff; empty where it is longer than a page shows."""

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def commit_change(address: str, directory: Path, sha: str) -> CommitChange:
    """Return what a commit changed; raise ValueError where the repository cannot be read.

    The copy of the server has no files: git fetches those of the commit.
    """
    reached = git_settings(check_repository(address))
    if not re.fullmatch(r"[0-9a-f]{7,64}", sha):
        raise ValueError(f"commit {sha[:20]!r} is not the hexadecimal name of a commit")
    if not (directory / "HEAD").exists():
        raise ValueError("the server has not read the repository yet")
    show = ["-C", str(directory), "show", "--first-parent", "-m", "--format=", "--no-color", "--no-ext-diff"]
    counted = _git([*show, "--no-textconv", "--no-renames", "--numstat", sha], reached, DIFF_TIMEOUT_S)
    files = [_file_change(*line.split("\t", 2)) for line in counted.splitlines() if line.count("\t") >= 2]
    lines = sum((file.added or 0) + (file.removed or 0) for file in files)
    text = ""
    if lines <= MAX_DIFF_LINES:
        text = _git([*show, "--no-textconv", "--unified=3", sha], reached, DIFF_TIMEOUT_S)
    return CommitChange(files[:MAX_FILES], text if len(text) <= MAX_DIFF_CHARACTERS else "")


MAX_DIFF_LINES, MAX_DIFF_CHARACTERS, MAX_FILES = 400, 60_000, 100
DIFF_TIMEOUT_S = 20


def _file_change(added: str, removed: str, path: str) -> FileChange:
    return FileChange(path[:300], *(int(count) if count.isdecimal() else None for count in (added, removed)))


def _git(arguments: Sequence[str], reached: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str:
    """Run git without asking for passwords; raise ValueError with its message."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(settings.DATA_DIR),
        "GIT_TERMINAL_PROMPT": "0",
        **reached,
    }
    try:
        done = subprocess.run(
            ["git", *arguments],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except FileNotFoundError as error:
        raise ValueError("git is not installed on the server; install it to watch repositories") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"git did not answer within {timeout_s:g} s; check that the server reaches the repository"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"git cannot read the repository: {reason[:300]}; check address and branch")
    return done.stdout


def mirror_of(pk: int) -> Path:
    """Return the directory of the server's copy of a watched repository; it contains no files of commits."""
    return Path(settings.DATA_DIR) / "watched" / f"{pk}.git"


def commit_of(data: Mapping[str, Any]) -> str:
    """Return the commit that the command of a configuration runs, empty if it names none."""
    argv = (data.get("command") or {}).get("argv") or []
    place = _place(argv)
    return str(argv[place]) if place else ""


def with_commit(data: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Return a configuration whose command runs a commit; raise ValueError if it has no place for it."""
    argv = list((data.get("command") or {}).get("argv") or [])
    place = _place(argv)
    if not place:
        raise ValueError(
            f"command.argv has no {OPTION}; end it with {OPTION} and a commit, see docs/use/watch.md, to run commits"
        )
    argv[place] = commit
    return {**data, "command": {**data["command"], "argv": argv}}


def _place(argv: Sequence[Any]) -> int:
    """Return the index of the commit in a command; 0 if there is none."""
    return next((at + 1 for at in range(len(argv) - 1) if argv[at] == OPTION), 0)
