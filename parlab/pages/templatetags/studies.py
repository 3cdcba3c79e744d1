"""The studies of the tuner on the home page."""

from typing import Any

from django import template

from parlab.tuner.results import lately
from runners.config import digest

register = template.Library()


def studies_context() -> dict[str, Any]:
    """Read the studies that run or ended lately, and name what a page has seen of them."""
    results = lately()
    states = [[each.study.pk, each.study.state, each.study.reason, len(each.search)] for each in results]
    return {"results": results, "seen": digest([states, [each.best and each.best.value for each in results]])[:16]}


@register.inclusion_tag("pages/home_studies.html")
def studies_now() -> dict[str, Any]:
    return studies_context()
