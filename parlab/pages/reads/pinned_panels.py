"""What shows a panel of an experiment in a report, and the report that it is pinned to."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import QueryDict

from parlab.charts.panels.catalogue import PANELS
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.sweeps.compare import CURVES
from parlab.lab.models import Experiment, Report
from parlab.reports.facts import MEASURED
from parlab.whole_numbers import whole_number

_UNQUOTABLE = frozenset('{}"\r\n')
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


def report_of(experiment: Experiment, user: User) -> Report | None:
    """Return the report about an experiment that was saved last and that a person may edit."""
    written = Report.objects.filter(experiment=experiment).order_by("-saved_at", "-pk")[:20]
    return next((report for report in written if report.is_editable_by(user)), None)
