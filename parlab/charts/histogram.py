"""A histogram as a small figure: bars between edges."""

from __future__ import annotations

from collections.abc import Sequence

from .svg import Canvas, Svg, length

WIDTH, HEIGHT = 260.0, 110.0


def histogram(edges: Sequence[float], counts: Sequence[float], label: str) -> Svg:
    """Draw counts as bars between edges, of which there is one more."""
    if len(edges) != len(counts) + 1 or not counts or not edges[-1] > edges[0]:
        return Canvas(WIDTH, HEIGHT).svg(label)
    canvas = Canvas(WIDTH, HEIGHT, (edges[0], edges[-1]), (0, max(*counts, 1)))
    canvas.y_axis().x_axis()
    foot = canvas.y(0)
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        start, top = canvas.x(left), canvas.y(count)
        place = f'x="{length(start)}" y="{length(top)}" width="{length(max(canvas.x(right) - start - 0.5, 0.5))}"'
        title = f"<title>{left:.4g} to {right:.4g}: {count:.4g}</title>"
        canvas.add(f'<rect class="f1" {place} height="{length(max(foot - top, 0))}">{title}</rect>')
    return canvas.svg(label)
