from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from parlab.formats.tools import autotuning
from parlab.ingest.files.images import MAX_PICTURE_BYTES
from parlab.ingest.files.imports import Import, Refused, results_import, stores_import, upload_import
from parlab.ingest.files.received import PictureLookup
from parlab.ingest.files.requested_format import formats, wanted_format
from parlab.ingest.files.stored import Target
from parlab.lab.command_line import user_named
from parlab.lab.models import Experiment
from parlab.tracking.imports import stores_of

MAX_FILES = 10_000
MAX_STORE_FILES = 1_000_000
_ACTIONS = {
    "new": ("would be imported into", "imported into"),
    "changed": ("changed; would be imported into", "changed; imported into"),
    "continued": ("has grown; would continue its runs in", "has grown; continues its runs in"),
    "none": ("already imported into", "already imported into"),
}
"""Change of an import -> text of a dry run, text of an import."""
_SHOWN_RUNS = 10
_SHOWN_FINDINGS = 10


class Command(BaseCommand):
    help = (
        "Import logs, documents and the stores of other trackers (MLflow, W&B offline, trackio): a run for each launch,"
        " result or logged run. Directories are searched for files; a results"
        " directory of DeepSpeed's autotuner and an archive are one import each. Importing the same file twice changes"
        " nothing; a file that has grown continues its runs. The exit code is 1 if a file was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("paths", nargs="+", metavar="FILE|DIR")
        parser.add_argument(
            "--experiment", metavar="SLUG", help="import into this experiment; by default each file creates one"
        )
        parser.add_argument(
            "--format",
            metavar="NAME",
            help=f"format of the files, instead of detecting it: {', '.join(formats())}, or learnt:NAME for a format"
            " of the page Log formats",
        )
        parser.add_argument("--user", metavar="NAME", help="user who imports; by default the first superuser")
        parser.add_argument(
            "--dry-run", action="store_true", help="show what would be created, without storing anything"
        )

    def handle(self, *args: Any, paths: list[str], **options: Any) -> None:
        self.experiment = _experiment(options["experiment"])
        self.user = user_named(options["user"])
        self.format: str | None = options["format"]
        try:
            wanted_format(self.format)
        except Refused as problem:
            raise CommandError(f"--format: {problem}", returncode=2) from problem
        self.dry_run: bool = options["dry_run"]
        refused = total = 0
        for path in map(Path, paths):
            store_files: frozenset[Path] = frozenset()
            if path.is_dir() and self.format is None:
                try:
                    store_files = self._import_stores(path)
                    total += bool(store_files)
                except (Refused, OSError) as problem:
                    refused, total = refused + 1, total + 1
                    self.stderr.write(f"{_printable(path)}: refused: {_reason(problem)}")
                    continue
            for file in _files(path, store_files):
                total += 1
                try:
                    for result in self._import(file):
                        self._report(result)
                except (Refused, OSError) as problem:
                    refused += 1
                    self.stderr.write(f"{_printable(file)}: refused: {_reason(problem)}")
        if refused:
            raise CommandError(f"{refused} of {total} files refused and not stored", returncode=1)

    def _import_stores(self, directory: Path) -> frozenset[Path]:
        """Import the stores of other trackers below a directory; returns the files that belong to them."""
        files = {file.relative_to(directory).as_posix(): file for file in _walk(directory, MAX_STORE_FILES)}
        stores = stores_of(files)
        target = Target(self.experiment, self.user)
        for imported in stores_import(stores=stores, target=target, dry_run=self.dry_run):
            self._report(imported)
        return frozenset(files[name] for store in stores for name in store.files)

    def _import(self, path: Path) -> list[Import]:
        if path.is_dir():
            files = {file.relative_to(path).as_posix(): file for file in _walk(path)}
            results = {name: file for name, file in files.items() if autotuning.wanted(name)}
            return [
                results_import(
                    experiment=self.experiment,
                    name=path.resolve().name,
                    files=results,
                    user=self.user,
                    dry_run=self.dry_run,
                )
            ]
        with path.open("rb") as stream:
            return upload_import(
                experiment=self.experiment,
                name=path.name,
                stream=stream,
                user=self.user,
                format=self.format,
                dry_run=self.dry_run,
                pictures=_pictures_beside(path),
                stores_of=stores_of,
            )

    def _report(self, result: Import) -> None:
        document, write = result.document, self.stdout.write
        target = result.experiment.slug if result.experiment else f"a new experiment, {result.experiment_name}"
        would_be, action = _ACTIONS[result.change]
        version = f" as version {result.version}" if result.version > 1 else ""
        action = would_be if self.dry_run else action
        size = f", {document.lines:,} lines" if document.lines else ""
        write(f"{result.name}: {document.format}{size}; {action} {target}{version}")
        parts = [f"{len(result.runs)} runs", f"{len(document.tables)} tables"]
        parts += [f"{sum(map(len, document.figures.values()))} figures", f"{len(document.images)} images"]
        write(f"  {', '.join(parts)}; {len(result.findings)} findings; {document.unread.lines:,} lines unread")
        for run in result.runs[:_SHOWN_RUNS]:
            number = f"#{run.number} " if run.number else ""
            reason = f" - {run.reason}" if run.reason else ""
            write(f"    {number}{run.label}: {_figures(run.summary) or run.state}{reason}")
        if len(result.runs) > _SHOWN_RUNS:
            write(f"    and {len(result.runs) - _SHOWN_RUNS} more")
        for finding in result.findings[:_SHOWN_FINDINGS]:
            line = f"line {finding.lines[0]}: " if finding.lines else ""
            write(f"  {finding.severity}: {line}{finding.message}")
        for example in document.unread.examples[:3]:
            write(f"  unread: line {example.line}: {example.reason}")


def _figures(summary: Any) -> str:
    times = summary.get("step_time_s") or {}
    figures = []
    if (seconds := times.get("median", times.get("mean"))) is not None:
        figures.append(f"{seconds:.4g} s a step")
    if summary.get("samples_per_s"):
        figures.append(f"{summary['samples_per_s']:.4g} samples/s")
    if memory := (summary.get("memory_peak_bytes") or {}).get("max"):
        figures.append(f"{memory / 2**30:.2f} GiB")
    return ", ".join(figures)


def _experiment(slug: str | None) -> Experiment | None:
    if slug is None:
        return None
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None:
        raise CommandError(f"no experiment {slug}; use the name in its URL, or omit --experiment to create one")
    return experiment


def _files(path: Path, store_files: frozenset[Path]) -> Iterator[Path]:
    """Yield files but `store_files`, and results directories of DeepSpeed's autotuner as a whole."""
    if not path.is_dir():
        yield path
        return
    if autotuning.is_results(entry.name for entry in path.iterdir()):
        yield path
        return
    files = [file for file in _walk(path) if file not in store_files]
    tuners = [
        directory
        for directory in sorted({parent for file in files for parent in file.parents if parent.is_relative_to(path)})
        if autotuning.is_results(entry.name for entry in directory.iterdir())
    ]
    yield from tuners
    pages = [file for file in files if not any(file.is_relative_to(directory) for directory in tuners)]
    if not tuners and not pages and not store_files:
        raise CommandError(f"directory {path} contains no files; choose one that contains logs")
    for file in pages:
        # Pictures are imported with the pages that refer to them.
        if file.suffix.lower() not in (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg"):
            yield file


def _walk(directory: Path, limit: int = MAX_FILES) -> list[Path]:
    """List the files of a directory. Links are skipped: what they lead to inside is listed at its own place."""
    paths = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted(path for path in paths if not path.name.startswith("."))
    return files[:limit]


def _pictures_beside(page: Path) -> PictureLookup:
    """Look up the pictures that a page refers to, in its directory and below."""
    directory = page.parent.resolve()

    def lookup(reference: str) -> bytes | None:
        try:
            path = (directory / reference).resolve()
            if not path.is_relative_to(directory) or not path.is_file() or path.stat().st_size > MAX_PICTURE_BYTES:
                return None
            return path.read_bytes()
        except (OSError, ValueError):
            return None

    return lookup


def _printable(path: Path) -> str:
    """Replace characters of a file name that a terminal would interpret."""
    return "".join(character if character.isprintable() else "?" for character in str(path))


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return f"it cannot be read ({problem.strerror or problem}); check that it exists and is readable"
    return str(problem)
