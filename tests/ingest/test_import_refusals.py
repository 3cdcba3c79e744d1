"""What is not imported: refused with a reason, and nothing is left behind."""

from __future__ import annotations

import bz2
import gzip
import io
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries, Settings

from parlab.ingest.files import archives
from parlab.ingest.files.imports import Refused, upload_import
from parlab.ingest.files.received import display_name, kind_of
from parlab.lab.models import Experiment, Run, Source

from .pages import PNG, megatron, zipped

Refuse = Callable[..., str]


@pytest.fixture
def refuse(user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Upload bytes that must be refused; returns the reason. Nothing may be left in the database or on disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuse(data: bytes, name: str = "upload") -> str:
        with pytest.raises(Refused) as refused:
            upload_import(experiment=None, name=name, stream=io.BytesIO(data), user=user)
        assert not Source.objects.exists()
        assert not Experiment.objects.exists()
        assert list(tmp_path.iterdir()) == []
        return str(refused.value)

    return refuse


def tarred(*entries: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for entry, data in entries:
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", bytes(5_000)])
def test_an_empty_file_is_refused(refuse: Refuse, data: bytes) -> None:
    assert refuse(data, "night.log") == "night.log is empty; choose a file that contains training output"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (PNG * 10, "a binary file"),
        (b"\x7fELF" + bytes(range(256)) * 8, "a binary file"),
        (b"%PDF-1.7\nsome text", "a PDF"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(range(256)), "a 7z archive"),
    ],
)
def test_a_binary_file_is_refused_by_what_it_is(refuse: Refuse, data: bytes, what: str) -> None:
    assert refuse(data, "x.log").startswith(f"x.log is {what}, not text")


def test_text_of_an_unknown_format_is_refused_with_the_known_formats(refuse: Refuse) -> None:
    reason = refuse(b"dear diary\nnothing happened\n" * 10)
    assert "is not recognised; specify the format" in reason
    assert "megatron" in reason


def test_a_log_with_a_run_of_nul_bytes_is_text(user: User) -> None:
    data = megatron(3) + bytes(300) + b"\n"
    upload_import(experiment=None, name="run.log", stream=io.BytesIO(data), user=user)
    assert Run.objects.count() == 1


def test_a_file_above_the_limit_is_refused_and_not_kept(refuse: Refuse, settings: Settings) -> None:
    settings.UPLOAD_LIMIT_MIB = 1
    reason = refuse(megatron(6_000))
    assert "larger than 1 MiB" in reason
    assert "PARLAB_UPLOAD_LIMIT_MIB" in reason


def test_an_archive_that_unpacks_beyond_the_limit_is_refused(refuse: Refuse, settings: Settings) -> None:
    settings.UPLOAD_LIMIT_MIB = 1
    log = megatron(3_000)
    assert "unpacks to more than 1 MiB" in refuse(zipped({"a.log": log, "b.log": log + b"\n"}), "logs.zip")


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        *(pytest.param(pack, marks=pytest.mark.slow) for pack in (lambda data: zipped({"a.log": data}), bz2.compress)),
    ],
)
def test_a_decompression_bomb_is_refused(refuse: Refuse, pack: Callable[[bytes], bytes]) -> None:
    assert f"more than {archives.MAX_RATIO} times its size" in refuse(pack(bytes(64 << 20)), "bomb")


OUTSIDE = ("/etc/passwd", "a/../../b.log", "C:\\b.log", "..\\b.log")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", *(pytest.param(name, marks=pytest.mark.slow) for name in OUTSIDE)]
)
def test_a_path_outside_the_archive_is_refused(refuse: Refuse, name: str) -> None:
    assert "has a path outside the archive" in refuse(zipped({"a.log": megatron(2), name: b"x"}))
    assert "has a path outside the archive" in refuse(tarred((entry(name), b"x")))


OTHER_KINDS = (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHER_KINDS)]
)
@pytest.mark.parametrize("mode", ["w", pytest.param("w:gz", marks=pytest.mark.slow)])
def test_links_and_devices_in_a_tar_are_refused(refuse: Refuse, kind: bytes, mode: str) -> None:
    assert "link or a device" in refuse(tarred((entry("a.log", kind, "/etc/passwd"), b""), mode=mode))


def test_a_link_in_a_zip_is_refused(refuse: Refuse) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        info = zipfile.ZipInfo("a.log")
        info.create_system = 3
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "a.log in upload is a link or a device" in refuse(stream.getvalue())


# Named, since gzip writes the time into its header and test workers must agree on the names of the tests.
@pytest.mark.parametrize(
    "inner", [zipped({"a.log": b"x"}), gzip.compress(b"x"), tarred((entry("a"), b"x"))], ids=["zip", "gzip", "tar"]
)
def test_an_archive_in_an_archive_is_refused(refuse: Refuse, inner: bytes) -> None:
    assert "is a nested archive" in refuse(zipped({"inner": inner}))
    assert "is a nested archive" in refuse(tarred((entry("inner"), inner), mode="w:gz"))


def test_a_member_that_claims_a_giant_header_is_refused(refuse: Refuse) -> None:
    info = entry("pax", tarfile.XHDTYPE)
    info.size = 1 << 32
    data = info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)
    assert "damaged archive" in refuse(data)


@pytest.mark.parametrize("cut", [40, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (200, -30))])
@pytest.mark.parametrize("pack", [lambda data: zipped({"a.log": data}), gzip.compress])
def test_a_damaged_archive_is_refused(refuse: Refuse, pack: Callable[[bytes], bytes], cut: int) -> None:
    assert "damaged archive" in refuse(pack(megatron(50))[:cut], "half.zip")


def test_an_archive_without_files_is_refused(refuse: Refuse) -> None:
    assert "contains no files" in refuse(zipped({"folder/": b"", ".hidden": b"x"}), "nothing.zip")


def test_an_archive_without_a_readable_file_is_refused(refuse: Refuse) -> None:
    reason = refuse(zipped({"a.png": PNG, "b.txt": b"dear diary\n", "c.txt": b""}), "mixed.zip")
    assert reason.startswith("mixed.zip contains no file that can be imported")


@pytest.mark.slow
def test_too_many_files_are_refused(refuse: Refuse) -> None:
    names = [f"{n}.log" for n in range(archives.MAX_MEMBERS + 2)]
    assert "more than 10,000 files" in refuse(zipped(dict.fromkeys(names, b"x")))
    assert "more than 10,000 files" in refuse(tarred(*((entry(name), b"") for name in names)))


class Vanishing(io.BytesIO):
    """A file that goes away while it is read."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 1 << 20:
            raise OSError(116, "Stale file handle")
        return super().read(size)


def test_a_file_that_vanishes_while_it_is_read_leaves_nothing(user: User) -> None:
    with pytest.raises(Refused, match="Stale file handle"):
        upload_import(experiment=None, name="x.log", stream=Vanishing(megatron(9_000)), user=user)
    assert not Source.objects.exists()


def test_an_unknown_format_is_refused_before_anything_is_read(user: User) -> None:
    with pytest.raises(Refused, match="unknown format 'pytorch'; use one of"):
        upload_import(experiment=None, name="x", stream=io.BytesIO(megatron(2)), user=user, format="pytorch")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\logs\\night.log", "night.log"),
        ("a\x00b\x1b[31m\n.log", "ab[31m.log"),
        ("gnp\u202egol.exe", "gnpgol.exe"),
        ("\x07", "unnamed file"),
        ("x" * 500, "x" * 200),
        ("журнал.log", "журнал.log"),
    ],
)
def test_a_name_is_made_safe_to_display(name: str, shown: str) -> None:
    assert display_name(name) == shown


def test_a_hostile_name_is_displayed_and_never_opened(user: User) -> None:
    [imported] = upload_import(
        experiment=None, name="../../tmp/\x1b]0;owned\x07evil.log", stream=io.BytesIO(megatron(2)), user=user
    )
    assert imported.name == "]0;ownedevil.log"
    assert Experiment.objects.get().name == "]0;ownedevil"


def test_text_and_archives_are_distinguished() -> None:
    assert kind_of(megatron(1)) == "text"
    assert kind_of("журнал\n".encode() * 50) == "text"
    assert kind_of(b"\x1b[32mstep: 1\x1b[0m\r\n" * 50) == "text"
    assert kind_of(gzip.compress(b"x")) == "gzip"
    assert kind_of(tarred((entry("a"), b"x"))) == "tar"


def test_a_stored_file_is_not_read_again(user: User, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    upload_import(experiment=None, name="x", stream=io.BytesIO(megatron(2)), user=user)
    with django_assert_max_num_queries(3):
        upload_import(experiment=None, name="x", stream=io.BytesIO(megatron(2)), user=user)
