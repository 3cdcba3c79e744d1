"""What shows a panel or a part of a page in a report, and the report that it is pinned to."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.validators import slug_re
from django.http import QueryDict
from django.urls import Resolver404, resolve

from parlab.charts.panels.catalogue import PANELS
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.sweeps.compare import CURVES
from parlab.lab.models import Experiment, Report
from parlab.publishing.page_parts import FIGURES, SHEETS
from parlab.reports.facts import MEASURED
from parlab.whole_numbers import whole_number

_UNQUOTABLE = frozenset('{}"\r\n')
MAX_DIRECTIVE = 2_000
"""Characters of a directive that an address can carry."""
_OPTIONS = ("y", "x", "by", "x_scale", "y_scale")


def directive_of(name: str, slug: str, query: QueryDict) -> str:
    """Return the directive of a panel, with the version and the axes of the address; empty if reports cannot show it.

    `curve:loss` becomes `{{ figure curves experiment=slug series=loss }}`, `value:3:step_time_s` the value of run 3.
    """
    kind, _, own = name.partition(":")
    if kind == "value":
        number, _, field = own.partition(":")
        is_named = whole_number(number) is not None and field in MEASURED
        return f"{{{{ value {field} experiment={slug} run={number} }}}}" if is_named else ""
    figure = ""
    options: dict[str, str] = {"experiment": slug}
    if whole_number(version := query.get("version", "")) is not None:
        options["version"] = version
    if kind == "curve":
        known = own.replace("_", "-")
        figure, options["series"] = "curves", known if known in CURVES else own
    elif kind == "trials":
        figure, options["run"] = "capacity", own
    elif kind == "run":
        options["run"], figure, options["series"] = [*own.split(":", 2), "", ""][:3]
        options = {option: value for option, value in options.items() if value}
    elif kind == "figure" and own in EXPERIMENT_FIGURES:
        figure = own
        chosen = EXPERIMENT_FIGURES[own].choices
        options |= {option: value for option in _OPTIONS if option in chosen and (value := query.get(option, ""))}
    elif name in PANELS:
        figure = PANELS[name].numbers
    if not figure or any(set(value) & _UNQUOTABLE for value in options.values()):
        return ""
    return f"{{{{ figure {figure} {' '.join(map(_option, options.items()))} }}}}"


def _option(option: tuple[str, str]) -> str:
    name, value = option
    return f'{name}="{value}"' if set(value) & set(" \t=") else f"{name}={value}"


def part_directive(name: str, page: str, title: str) -> str:
    """Return the directive of a part or a figure of a page; empty for a page without parts."""
    try:
        match = resolve(page.partition("?")[0])
    except Resolver404:
        return ""
    shown = "".join(character for character in title if character not in _UNQUOTABLE)
    address = page.replace("{", "%7B").replace("}", "%7D").replace('"', "%22")
    kind = "figure" if match.url_name in FIGURES else "part" if match.url_name in SHEETS else ""
    text = f'{{{{ {kind} {name} page="{address}" title="{shown}" }}}}'
    return text if kind and slug_re.fullmatch(name) and len(text) < MAX_DIRECTIVE else ""


def experiment_of_page(page: str) -> Experiment | None:
    """Return the experiment that an address names."""
    match = resolve(page.partition("?")[0])
    return Experiment.objects.filter(slug=match.kwargs.get("slug", "")).first()


def report_of(experiment: Experiment | None, user: User) -> Report | None:
    """Return the report about an experiment, or about none, that was saved last and that a person may edit."""
    written = Report.objects.filter(experiment=experiment)
    if experiment is None:
        written = written.filter(owner=user)
    written = written.order_by("-saved_at", "-pk")[:20]
    return next((report for report in written if report.is_editable_by(user)), None)
