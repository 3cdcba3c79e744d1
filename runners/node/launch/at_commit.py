"""Run a program at one commit of a git repository: `at_commit.py --repository R --run "..." --commit C`.

Engine command starts it for watches; the standard library and git suffice. Each commit is checked out into a worktree
of its own and built there once. The program then replaces this one, so that output, signals and exit code are its own.
Repeats use the worktree again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KEPT = 20
"""Worktrees of a repository; older ones are removed."""
CHOSEN = "--commit"
"""The option that parlab sets for each run."""
_BUILT = ".parlab-built"


def main() -> int:
    parser = argparse.ArgumentParser(prog="at_commit.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--repository", required=True, help="path or address of the repository")
    parser.add_argument("--run", required=True, help="program and arguments, without a shell; python is this Python")
    parser.add_argument("--build", default="", help="command that runs once in a new worktree")
    parser.add_argument("--cache", default="", help="directory of copies and worktrees; default: ~/.cache/parlab")
    parser.add_argument("--commit", required=True, help="commit, branch or tag")
    # Commands of earlier versions may have this option, which permitted the installation of packages.
    parser.add_argument("--pip", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_order(parser, sys.argv[1:])
    if not re.fullmatch(r"(?!-)[\w./~^-]{1,200}", arguments.commit):
        parser.error(f"--commit {arguments.commit!r} is no commit; use its SHA")
    cache = Path(arguments.cache or Path.home() / ".cache" / "parlab").resolve()
    try:
        os.chdir(checkout(cache, arguments, sys.executable))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{shlex.join(error.cmd)} failed with exit code {error.returncode}; see its output above\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error}; check --repository, --build, and that this node has git\n")
        return 1
    argv = command_of(arguments.run, sys.executable)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}; check --run\n")
        return 1


def check_order(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """End if an option follows --commit: a node allows the arguments before it, and any after it."""
    names = [argument.partition("=")[0] for argument in argv if argument.startswith("--")]
    if CHOSEN in names and names[-1] != CHOSEN:
        parser.error(f"{names[-1]} follows --commit; write --commit last")
    if names.count(CHOSEN) > 1:
        parser.error("--commit occurs twice; write it once")


def checkout(cache: Path, arguments: argparse.Namespace, python: str) -> Path:
    """Return the worktree of the commit, which is built if it is new."""
    home = cache / hashlib.sha256(arguments.repository.encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs may start at the same time
        sha, tree = worktree(home, arguments.repository, arguments.commit)
        if arguments.build and not (tree / _BUILT).exists():
            checked(command_of(arguments.build, python), tree)
        (tree / _BUILT).touch()
        prune(home, tree)
    sys.stdout.write(f"commit {sha} of {arguments.repository}\n")
    sys.stdout.flush()
    return tree


def worktree(home: Path, repository: str, commit: str) -> tuple[str, Path]:
    """Return the SHA and the worktree of a commit, which is fetched and checked out if necessary."""
    mirror = home / "repository.git"
    if not (mirror / "HEAD").exists():
        checked(["git", "clone", "--quiet", "--bare", "--", repository, str(mirror)], home)
    own = ["git", "-C", str(mirror)]
    sha = _sha(own, commit)
    if not sha or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        checked([*own, "fetch", "--quiet", "--prune", repository, "+refs/heads/*:refs/heads/*"], home)
        sha = _sha(own, commit)
    if not sha:
        raise FileNotFoundError(f"the repository {repository} has no commit {commit}")
    tree = home / sha
    if not (tree / ".git").exists():
        shutil.rmtree(tree, ignore_errors=True)
        checked([*own, "worktree", "prune"], home)
        checked([*own, "worktree", "add", "--quiet", "--force", "--detach", str(tree), sha], home)
    os.utime(tree)
    return sha, tree


def prune(home: Path, current: Path) -> None:
    """Remove the worktrees that were used least recently."""
    trees = [path for path in home.iterdir() if path.is_dir() and re.fullmatch(r"[0-9a-f]{40,64}", path.name)]
    for tree in sorted(trees, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        if tree != current:
            shutil.rmtree(tree, ignore_errors=True)


def command_of(text: str, python: str) -> list[str]:
    argv = shlex.split(text)
    return [python, *argv[1:]] if argv[:1] == ["python"] else argv


def checked(argv: Sequence[str], directory: Path) -> None:
    """Run a command with its output in the log of the run; raise CalledProcessError."""
    subprocess.run(argv, cwd=directory, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=_environment())


def _sha(own: Sequence[str], commit: str) -> str:
    argv = [*own, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=_environment())
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*"}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
