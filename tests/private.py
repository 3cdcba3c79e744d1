"""Which files other accounts of a machine could read."""

from __future__ import annotations

from pathlib import Path


def readable_by_others(directory: Path) -> list[str]:
    """Return the files of a directory that are open to other accounts; a closed directory protects what is in it."""
    opened = []
    for path in sorted(directory.iterdir()):
        is_open = bool(path.lstat().st_mode & 0o077) and not path.is_symlink()
        if path.is_dir() and is_open:
            opened += readable_by_others(path)
        elif is_open:
            opened.append(str(path))
    return opened
