"""What holds of every page: axe-core finds nothing in both themes, and the browser reports no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.sync_api import ConsoleMessage, Page

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
# Without preload: axe's own copy of the style sheets would be inline, which the policy forbids.
RULES = "{preload: false, runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}"


def violations(page: Page) -> list[str]:
    """Return what axe-core finds on a page as it is shown now."""
    page.evaluate(AXE)
    report: dict[str, Any] = page.evaluate(f"axe.run(document, {RULES})")
    return [
        f"{rule['id']}: {node['target']} {node['html'][:120]}"
        for rule in report["violations"]
        for node in rule["nodes"]
    ]


def errors_of(page: Page) -> list[str]:
    """Return a list that gets every error of a page; what the policy forbids is one."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    return errors


def _is_error(message: ConsoleMessage) -> bool:
    # A request in flight is aborted when the page is left; requests that fail have an error of their own beside these.
    return message.type == "error" and not message.text.startswith(("htmx:sendAbort,", "htmx:afterRequest,"))
