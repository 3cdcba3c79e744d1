"""Studies on the home page."""

from typing import Any

from django import template

from parlab.tuner.results import lately
from runners.config import digest

register = template.Library()


def studies_context() -> dict[str, Any]:
    """Return active and recent studies, with a digest of their state for polls."""
    results = lately()
    states = [[result.study.pk, result.study.state, result.study.reason, len(result.search)] for result in results]
    return {
        "results": results,
        "seen": digest([states, [result.best and result.best.value for result in results]])[:16],
    }


@register.inclusion_tag("pages/home_studies.html")
def studies_now() -> dict[str, Any]:
    return studies_context()
