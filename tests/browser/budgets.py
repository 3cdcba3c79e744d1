"""How much a page says and offers at once: words and controls outside tables and figures, a repeated row once."""

from __future__ import annotations

from typing import NamedTuple

from playwright.sync_api import Page


class Load(NamedTuple):
    """What a person meets on a page."""

    words: int
    controls: int


# Siblings of the same kind, three or more, are rows of one list (or cards, each a link): the first stands for them.
_COUNT = """() => {
  const skipped = "table, svg, figure, script, style, template, dialog, [hidden], .unseen, .plot, .js-plotly-plot";
  const control = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  const hasNoBox = (element) => getComputedStyle(element).display === "contents";
  const isShown = (element) => hasNoBox(element) || element.checkVisibility({ checkVisibilityCSS: true });
  const kind = (element) => `${element.tagName} ${[...element.classList].sort().join(".")}`;
  function walk(element) {
    let words = 0, controls = element.matches(control) ? 1 : 0;
    const kinds = new Map();
    for (const child of element.children) kinds.set(kind(child), (kinds.get(kind(child)) || 0) + 1);
    const seen = new Set();
    for (const node of element.childNodes) {
      if (node.nodeType === Node.TEXT_NODE) words += (node.textContent.match(/[\\p{L}\\p{N}]{2,}/gu) || []).length;
      if (node.nodeType !== Node.ELEMENT_NODE || node.matches(skipped) || !isShown(node)) continue;
      const isRow = kinds.get(kind(node)) > 2 && (!node.matches(control) || node.matches(".card"));
      if (isRow && seen.has(kind(node))) continue;
      seen.add(kind(node));
      const inside = walk(node);
      words += inside.words;
      controls += inside.controls;
    }
    return { words, controls };
  }
  return walk(document.querySelector("main"));
}"""


def load_of(page: Page) -> Load:
    """Count visible words of two or more letters, and controls, in the main part of a page."""
    return Load(**page.evaluate(_COUNT))
