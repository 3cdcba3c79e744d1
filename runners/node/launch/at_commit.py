"""Run a program at one commit of a git repository, with the packages of one lock, or both.

`at_commit.py --repository R --run "..." --commit C`, `at_commit.py --run "..." --pip "" --lock "numpy==2.4.6"`.
Engine command starts it for watches; the standard library, git and pip suffice. Each commit is checked out into a
worktree of its own and built there once, each lock is installed once into a virtual environment of its own. The program
then replaces this one, so that output, signals and exit code are its own. Repeats use worktree and environment again.
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
import sysconfig
from collections.abc import Sequence
from pathlib import Path

KEPT = 20
"""Worktrees of a repository, and environments of locks; older ones are removed."""
CHOSEN = ("--commit", "--lock")
"""Options that parlab sets for each run."""
_BUILT = ".parlab-built"


def main() -> int:
    parser = argparse.ArgumentParser(prog="at_commit.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--repository", default="", help="path or address of the repository")
    parser.add_argument("--run", required=True, help="program and arguments, without a shell; python is this Python")
    parser.add_argument("--build", default="", help="command that runs once in a new worktree")
    parser.add_argument("--cache", default="", help="directory of copies and worktrees; default: ~/.cache/parlab")
    parser.add_argument("--commit", default="", help="commit, branch or tag")
    parser.add_argument("--lock", default="", help="packages to install: name==version, separated by spaces")
    parser.add_argument("--pip", help="options of pip install for --lock: --index-url, --find-links, or empty")
    arguments = parser.parse_args()
    check_order(parser, sys.argv[1:])
    check(parser, arguments)
    cache = Path(arguments.cache or Path.home() / ".cache" / "parlab").resolve()
    python = sys.executable
    try:
        if arguments.lock:
            python = str(environment(cache / "environments", arguments.lock, shlex.split(arguments.pip)))
        if arguments.repository:
            os.chdir(checkout(cache, arguments, python))
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{shlex.join(error.cmd)} failed with exit code {error.returncode}; see its output above\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error}; check --repository, --build, --pip, and that this node has git and pip\n")
        return 1
    if arguments.lock:
        os.environ["VIRTUAL_ENV"] = str(Path(python).parent.parent)
        os.environ["PATH"] = f"{Path(python).parent}:{os.environ.get('PATH', '')}"
    argv = command_of(arguments.run, python)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}; check --run\n")
        return 1


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a message if the arguments cannot be used."""
    if not arguments.repository and not arguments.lock:
        parser.error("nothing to run; use --repository and --commit, or --lock")
    if arguments.repository and not re.fullmatch(r"(?!-)[\w./~^-]{1,200}", arguments.commit):
        parser.error(f"--commit {arguments.commit!r} is no commit; use its SHA")
    if arguments.lock and arguments.pip is None:
        parser.error(
            "--lock needs --pip, by which the node's administrator allows it; use --pip '' for pip's own index"
        )
    for pin in arguments.lock.split():
        if not re.fullmatch(r"(?!-)[\w.-]{1,100}==[\w.+!-]{1,80}", pin):
            parser.error(f"--lock {pin[:100]!r} is no pinned package; use name==version")


def check_order(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """End if an option follows --commit or --lock: a node allows the arguments before them, and any after them."""
    names = [argument.partition("=")[0] for argument in argv if argument.startswith("--")]
    first = next((at for at, name in enumerate(names) if name in CHOSEN), len(names))
    for name in names[first:]:
        if name not in CHOSEN or names.count(name) > 1:
            parser.error(f"{name} follows --commit or --lock; write --commit and --lock last, each once")


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


def environment(home: Path, pins: str, options: Sequence[str]) -> Path:
    """Return the Python of a virtual environment with the packages of a lock, which is created if it is new."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = "\n".join([sys.version, *options, *sorted(pins.split())])
    directory = home / hashlib.sha256(identity.encode()).hexdigest()[:40]
    python = directory / "bin" / "python"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / _BUILT).exists():
            shutil.rmtree(directory, ignore_errors=True)
            checked([sys.executable, "-m", "venv", "--without-pip", str(directory)], home)
            # A lock names every package; resolving dependencies again could install others.
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
            checked([*pip, "install", "--quiet", "--no-deps", *options, *pins.split()], home)
            # Packages that the lock does not name are those of this Python; the lock's own come before them.
            packages = sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)})
            (Path(packages) / "parlab-node.pth").write_text(sysconfig.get_path("purelib") + "\n")
            (directory / _BUILT).touch()
        os.utime(directory)
        prune(home, directory)
    return python


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
    """Remove the worktrees or environments that were used least recently."""
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
