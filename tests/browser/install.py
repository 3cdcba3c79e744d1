"""`python -m tests.browser.install`: check for a browser, install one if it is missing, or report the remedy."""

import os
import shutil
import subprocess
import sys


def find_chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    return None


def playwright_has_chromium() -> bool:
    """Return whether Playwright's own Chromium is installed and starts."""
    script = (
        "from playwright.sync_api import sync_playwright as p\n"
        "with p() as play: play.chromium.launch(args=['--no-sandbox']).close()"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def main() -> int:
    """Install a browser with the first method that works."""
    methods = [
        ("the system's package", _apt),
        ("Playwright's download", lambda: _run([sys.executable, "-m", "playwright", "install", "chromium"])),
    ]
    if find_chromium() or playwright_has_chromium():
        return 0
    for name, install in methods:
        print(f"parlab: no Chromium found, installing {name}", flush=True)
        if install() and (find_chromium() or playwright_has_chromium()):
            return 0
    print("parlab: the browser tests need Chromium; install your system's chromium package", file=sys.stderr)
    return 1


def _apt() -> bool:
    if not shutil.which("apt-get"):
        return False
    prefix = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    return _run([*prefix, "apt-get", "update", "-q"]) and _run(
        [*prefix, "apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", "fonts-liberation"]
    )


def _run(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, stdout=sys.stderr, env=environment).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
