"""Picture jobs of a worker: figures and PDF of a published version, the two panels of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings

from parlab.lab.models import PictureJob, ReportFile, ReportVersion
from parlab.lab.services.pictures import file_store, picture_add, picture_job_claim, picture_job_end, picture_job_note
from parlab.reports.blocks import Content

from .chromium import SCALE, Browser, NoPicture, find_program, started
from .exports import page_html
from .panels import PANELS, WIDTH, panels, step_figure
from .pictures import Easel, page_pdf, page_png

logger = logging.getLogger(__name__)

LIMIT_S = 170.0
"""Time limit of one job; shorter than the silence after which its worker counts as killed."""

Note = Callable[[int, int], None]
"""Reports progress: pictures done, pictures in total."""


def draw(*, job_id: int) -> None:
    """Draw the pictures of a job unless another worker has claimed it; a failure is stored as the job's problem."""
    job = picture_job_claim(job_id=job_id)
    if job is None:
        return

    def note(done: int, total: int) -> None:
        picture_job_note(job=job, done=done, total=total)

    try:
        with started(program=find_program(settings.CHROMIUM), limit_s=LIMIT_S) as browser:
            if job.version is not None:
                _draw_version(browser, job.version, note)
            else:
                _draw_run(browser, job, note)
    except NoPicture as problem:
        picture_job_end(job=job, problem=str(problem))
    except OSError as problem:
        logger.exception("pictures of job %s could not be drawn", job_id)
        picture_job_end(job=job, problem=f"the server could not draw: {problem.strerror or problem}. Draw again.")
    else:
        picture_job_end(job=job)


def _draw_version(browser: Browser, version: ReportVersion, note: Note) -> None:
    content = Content.model_validate(version.content)
    existing_names = set(version.files.values_list("name", flat=True))
    figures = [(name, block) for name, block in content.figures() if f"{name}.png" not in existing_names]
    total = len(figures) + 1
    note(0, total)
    easel = Easel(browser) if figures else None
    for done, (name, block) in enumerate(figures, 1):
        assert easel is not None
        drawn = easel.draw(block.figure)
        _store_file(version, f"{name}.svg", drawn.svg, "image/svg+xml", drawn.width, drawn.height)
        _store_file(version, f"{name}.png", drawn.png, "image/png", SCALE * drawn.width, SCALE * drawn.height)
        note(done, total)
    if "report.pdf" not in existing_names:
        files = {entry.name: bytes(entry.file.data) for entry in version.files.select_related("file")}
        pdf = page_pdf(browser, page_html(version, content, files))
        _store_file(version, "report.pdf", pdf, "application/pdf")
    note(total, total)


def _store_file(
    version: ReportVersion, name: str, data: bytes, media_type: str, width: int = 0, height: int = 0
) -> None:
    file = file_store(data=data, media_type=media_type, width=width, height=height)
    ReportFile.objects.get_or_create(version=version, name=name, defaults={"file": file})


def _draw_run(browser: Browser, job: PictureJob, note: Note) -> None:
    run = job.run
    assert run is not None
    note(0, len(PANELS))
    figure = step_figure(run)
    run_panels = panels(run, curve=b"" if figure is None else Easel(browser).draw(figure).svg)
    for done, panel in enumerate(run_panels, 1):
        picture = page_png(browser, panel.html, WIDTH)
        width, height = _png_size(picture)
        file = file_store(data=picture, media_type="image/png", width=width, height=height)
        facts = {"origin": "drawn", "panel": panel.name, "run": run.number, "attempt": run.attempt_number}
        picture_add(
            experiment=run.experiment, run=run, file=file, caption=panel.caption, facts=facts, user=job.created_by
        )
        note(done, len(run_panels))


def _png_size(png: bytes) -> tuple[int, int]:
    """Return width and height in pixels, from the PNG header, which is always the first chunk."""
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
