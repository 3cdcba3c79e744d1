"""A directory -> an archive to import. Links are not followed: what they lead to inside is packed at its own place."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path


def pack(directory: Path, target: Path) -> list[str]:
    """Pack a directory under its own name into a .tar.gz; return the paths of the links in it, which are left out."""
    root = directory.resolve()
    links: list[str] = []
    with tarfile.open(target, "w:gz") as archive:
        for folder, folders, files in os.walk(root):
            links += [os.path.join(folder, name) for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted(files):
                path = Path(folder, name)
                if path.is_symlink():
                    links.append(str(path))
                elif path.is_file():
                    _add(archive, path, path.relative_to(root.parent).as_posix())
    return sorted(os.path.relpath(link, root) for link in links)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    # A second name of the same file is packed as a file of its own, and not as a link to the first one.
    archive.inodes.clear()  # type: ignore[attr-defined]  # typeshed does not know it
    with path.open("rb") as file:
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)
