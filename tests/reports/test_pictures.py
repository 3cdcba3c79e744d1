"""The gallery: pictures are identified by their content; permissions to upload and delete them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from PIL import Image, PngImagePlugin

from parlab.lab.models import Experiment, ReportVersion, Run, Snapshot, StoredFile
from parlab.publishing.images import cleaned

pytestmark = pytest.mark.django_db

SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
HTML = b"<!doctype html><html><script>alert(1)</script></html>"
LIMIT = 12 * 2**20


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 6), mode: str = "RGB", **more: object) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, 1).save(stream, kind, **more)
    return stream.getvalue()


def bomb() -> bytes:
    """Return a PNG of a few bytes whose header claims 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = b""
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        chunks += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return b"\x89PNG\r\n\x1a\n" + chunks


def upload(client: Client, experiment: Experiment, data: bytes, name: str = "figure.png", caption: str = "") -> str:
    file = SimpleUploadedFile(name, data, content_type="image/png")
    url = reverse("picture-upload", args=[experiment.slug])
    return client.post(url, {"files": file, "caption": caption}, follow=True).content.decode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HTML, "figure.png is not a PNG, JPEG or WebP picture: it is a web page"),
        (SVG, "it is an SVG drawing, which may contain scripts. Export it as PNG"),
        (picture("GIF", mode="P"), "it is a GIF. Export it as PNG"),
        (b"%PDF-1.4 ...", "it is a PDF"),
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n" + b"junk" * 20, "is damaged and cannot be read"),
        (picture()[:-30], "is damaged and cannot be read"),
        (bomb(), "make it smaller"),
    ],
)
def test_other_files_are_refused_by_their_content(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r"figure\.png") as refused:
        cleaned(io.BytesIO(data), name="figure.png", size=len(data), limit=LIMIT)

    assert message in str(refused.value)


def test_a_picture_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match=r"has 100.MiB, more than the limit of 12.0.MiB; make it smaller"):
        cleaned(io.BytesIO(b""), name="huge.png", size=100 * 2**20, limit=LIMIT)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_only_pixels_are_stored(kind: str) -> None:
    hidden = b"<script>alert('hidden')</script>"
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", hidden.decode())
    exif = Image.Exif()
    exif[0x010E] = hidden.decode()
    each: dict[str, dict[str, Any]] = {
        "PNG": {"pnginfo": info},
        "JPEG": {"comment": hidden, "exif": exif},
        "WEBP": {"exif": exif},
    }
    data = picture(kind, **each[kind]) + hidden
    assert data.count(hidden) >= 2

    clean = cleaned(io.BytesIO(data), name="figure", size=len(data), limit=LIMIT)

    assert hidden not in clean.data
    assert (clean.width, clean.height) == (8, 6)
    assert Image.open(io.BytesIO(clean.data)).format == kind


def test_an_uploaded_figure_is_listed_in_the_gallery_by_its_digest(page: Client, experiment: Experiment) -> None:
    html = upload(page, experiment, picture(), caption="Our <b>own</b> figure")
    upload(page, experiment, picture(), caption="Our <b>own</b> figure")

    (snapshot,) = Snapshot.objects.filter(kind="image")
    assert snapshot.is_intact
    assert "Our &lt;b&gt;own&lt;/b&gt; figure" in html
    assert f"picture {snapshot.digest[:12]} " in html
    stored = page.get(reverse("stored-picture", args=[snapshot.content["sha256"]]))
    assert stored.headers["Content-Type"] == "image/png"
    assert "sandbox" in stored.headers["Content-Security-Policy"]
    picture_response = page.get(reverse("picture-file", args=[experiment.slug, snapshot.pk]))
    assert picture_response.headers["Content-Disposition"].startswith("attachment; filename=")
    assert picture_response.content == stored.content


def test_a_refused_file_does_not_affect_the_others(page: Client, experiment: Experiment) -> None:
    files = [SimpleUploadedFile("good.png", picture()), SimpleUploadedFile("<i>bad.png", HTML)]

    html = page.post(reverse("picture-upload", args=[experiment.slug]), {"files": files}, follow=True).content.decode()

    assert "Uploaded 1 picture " in html
    assert "Not uploaded: &lt;i&gt;bad.png is not a PNG" in html
    assert "it is a web page" in html
    assert "<i>bad" not in html
    assert StoredFile.objects.count() == 1


def test_a_reader_neither_uploads_nor_deletes(page: Client, reader: Client, experiment: Experiment) -> None:
    upload(page, experiment, picture())
    snapshot = Snapshot.objects.get()

    assert reader.get(reverse("gallery", args=[experiment.slug])).status_code == 200
    assert reader.post(reverse("picture-upload", args=[experiment.slug])).status_code == 403
    assert reader.post(reverse("picture-draw", args=[experiment.slug]), {"run": 1}).status_code == 403
    assert reader.post(reverse("picture-delete", args=[experiment.slug, snapshot.pk])).status_code == 403
    assert Snapshot.objects.exists()


def test_users_delete_only_their_own_pictures(page: Client, experiment: Experiment) -> None:
    upload(page, experiment, picture())
    person = get_user_model().objects.create_user("uploader", password="brings figures")
    person.user_permissions.add(Permission.objects.get(codename="add_snapshot"))
    theirs = Client()
    theirs.force_login(person)
    upload(theirs, experiment, picture(size=(9, 9)))
    mine, other = Snapshot.objects.order_by("pk")

    assert theirs.post(reverse("picture-delete", args=[experiment.slug, mine.pk])).status_code == 403
    assert theirs.post(reverse("picture-delete", args=[experiment.slug, other.pk])).status_code == 302

    assert list(Snapshot.objects.all()) == [mine]
    assert StoredFile.objects.count() == 1


def test_results_cannot_be_deleted_as_pictures(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    imported = Snapshot.objects.create(
        experiment=run.experiment, kind="image", digest="0" * 64, content={"source": "figures/a.JPG"}
    )
    results = Snapshot.objects.create(experiment=run.experiment, run=run, kind="results", digest="1" * 64, content={})

    assert page.post(reverse("picture-delete", args=[run.experiment.slug, results.pk])).status_code == 404
    assert page.post(reverse("picture-delete", args=[run.experiment.slug, imported.pk])).status_code == 403


def test_a_published_report_keeps_a_picture_deleted_from_the_gallery(
    page: Client, experiment: Experiment, make_version: Callable[[str], ReportVersion]
) -> None:
    upload(page, experiment, picture(size=(40, 20)), caption="Device map")
    snapshot = Snapshot.objects.get()
    version = make_version(f'{{{{ picture {snapshot.digest[:12]} caption="Who sits where" width=400 }}}}')
    draft = version.report.get_absolute_url()
    assert "<figcaption>Who sits where</figcaption>" in page.get(draft).content.decode()

    page.post(reverse("picture-delete", args=[experiment.slug, snapshot.pk]))

    assert "does not exist, or it was deleted" in page.get(draft).content.decode()
    html = page.get(version.get_absolute_url()).content.decode()
    url = reverse("report-file", args=[version.report.slug, 1, f"picture-{snapshot.content['sha256']}"])
    assert f'src="{url}"' in html
    assert page.get(url).headers["Content-Type"] == "image/png"
    alone = page.get(reverse("report-file", args=[version.report.slug, 1, "report.html"])).content.decode()
    assert 'src="data:image/png;base64,' in alone


def test_a_shared_report_gives_no_access_to_other_pictures(
    page: Client, experiment: Experiment, make_version: Callable[[str], ReportVersion]
) -> None:
    upload(page, experiment, picture())
    version = make_version("no picture")
    page.post(reverse("report-share", args=[version.report.slug, 1]))
    token = version.links.get().token
    sha = Snapshot.objects.get().content["sha256"]

    assert Client().get(reverse("shared-file", args=[token, f"picture-{sha}"])).status_code == 404
    assert Client().get(reverse("stored-picture", args=[sha])).status_code == 302
