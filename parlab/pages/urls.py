"""Where the pages are."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from .views import (
    experiments,
    figures,
    findings,
    home,
    imports,
    lists,
    nodes,
    questions,
    runs,
    simulations,
    sources,
)

RUN = "experiments/<slug:slug>/runs/<int:number>/"
SOURCE = "experiments/<slug:slug>/sources/<int:pk>/"
FINDING = "experiments/<slug:slug>/findings/<int:pk>/"

urlpatterns = [
    path("login/", LoginView.as_view(template_name="pages/login.html", redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", home.home, name="home"),
    path("experiments/", lists.experiments, name="experiments"),
    path("experiments/change/", lists.experiments_change, name="experiments-change"),
    path("runs/change/", lists.runs_change, name="runs-change"),
    path("columns/<slug:name>/", lists.columns, name="columns"),
    path("nodes/", nodes.nodes, name="nodes"),
    path("simulate/", simulations.simulate, name="simulate"),
    path("simulate/timeline.json", simulations.timeline_json, name="simulate-figure"),
    path("simulate/timeline.csv", simulations.timeline_csv, name="simulate-numbers"),
    path("import/", imports.choose, name="import"),
    path("import/<slug:key>/", imports.preview, name="import-preview"),
    path("import/<slug:key>/discard/", imports.discard, name="import-discard"),
    path("questions/", questions.questions, name="questions"),
    path("questions/<slug:key>/", questions.ask, name="question"),
    path("questions/<slug:key>/preview/", questions.preview, name="question-preview"),
    path("experiments/<slug:slug>/answer/", questions.answer, name="answer"),
    path("experiments/<slug:slug>/answer/live/", questions.answer_live, name="answer-live"),
    path("findings/rules/", findings.rules, name="rules"),
    path("experiments/<slug:slug>/", experiments.experiment, name="experiment"),
    path("experiments/<slug:slug>/live/", experiments.experiment_live, name="experiment-live"),
    path("experiments/<slug:slug>/launch/<int:version>/", experiments.launch, name="launch"),
    path("experiments/<slug:slug>/report.md", experiments.report, name="report"),
    path("experiments/<slug:slug>/clone/", experiments.clone, name="clone"),
    path("experiments/<slug:slug>/figures/<slug:name>.json", figures.experiment_json, name="experiment-figure"),
    path("experiments/<slug:slug>/figures/<slug:name>.csv", figures.experiment_csv, name="experiment-numbers"),
    path("experiments/<slug:slug>/findings/", findings.findings, name="findings"),
    path(f"{FINDING}acknowledge/", findings.acknowledge, name="finding-acknowledge"),
    path(f"{FINDING}reopen/", findings.reopen, name="finding-reopen"),
    path(SOURCE, sources.source, name="source"),
    path(f"{SOURCE}raw/", sources.raw, name="source-raw"),
    path(f"{SOURCE}lines/<int:first>-<int:last>/", sources.lines, name="source-lines"),
    path("experiments/<slug:slug>/pictures/<int:pk>/", sources.picture, name="picture"),
    path(RUN, runs.run, name="run"),
    path(f"{RUN}live/", runs.run_live, name="run-live"),
    path(f"{RUN}log/", runs.run_log, name="run-log"),
    path(f"{RUN}engine/", runs.run_engine, name="run-engine"),
    path(f"{RUN}cancel/", runs.cancel, name="run-cancel"),
    path(f"{RUN}relaunch/", runs.relaunch, name="run-relaunch"),
    path(f"{RUN}snapshots/<int:pk>/", runs.snapshot, name="snapshot"),
    path(f"{RUN}figures/<slug:name>.json", figures.run_json, name="run-figure"),
    path(f"{RUN}figures/<slug:name>.csv", figures.run_csv, name="run-numbers"),
]
