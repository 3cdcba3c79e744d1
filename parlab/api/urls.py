"""Addresses of the API; /api/schema/ and docs/api.md describe the requests and responses."""

from django.urls import path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView

from . import actions, marks, numbers, plans, simulations, studies, traces, views, waiting, watches, waterfalls

app_name = "api"
EXPERIMENT = "experiments/<slug:slug>/"
RUN = f"{EXPERIMENT}runs/<int:number>/"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="api:schema"), name="root"),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("imports/", views.Imports.as_view(), name="imports"),
    path("experiments/", actions.Experiments.as_view(), name="experiments"),
    path(EXPERIMENT, views.OneExperiment.as_view(), name="experiment"),
    path(f"{EXPERIMENT}runs/", views.Runs.as_view(), name="runs"),
    path(f"{EXPERIMENT}runs/<int:number>/", views.OneRun.as_view(), name="run"),
    path(f"{EXPERIMENT}runs/<int:number>/log/", views.Log.as_view(), name="log"),
    path(f"{EXPERIMENT}configurations/", actions.Configs.as_view(), name="configurations"),
    path(f"{EXPERIMENT}launch/", actions.Launch.as_view(), name="launch"),
    path(f"{RUN}cancel/", actions.Cancel.as_view(), name="cancel"),
    path(f"{RUN}relaunch/", actions.Relaunch.as_view(), name="relaunch"),
    path(f"{RUN}wait/", waiting.Wait.as_view(), name="wait"),
    path(f"{RUN}time/", waterfalls.RunTime.as_view(), name="time"),
    path(f"{RUN}traces/", traces.RunTraces.as_view(), name="traces"),
    path(f"{RUN}marks/", marks.Marks.as_view(), name="marks"),
    path(f"{EXPERIMENT}comments/", marks.Comments.as_view(), name="comments"),
    path(f"{EXPERIMENT}comments/<int:pk>/", marks.OneComment.as_view(), name="comment"),
    path(f"{RUN}metrics/", numbers.SeriesOfRun.as_view(), name="metrics"),
    path(f"{RUN}series/", numbers.OneSeries.as_view(), name="series"),
    path(f"{RUN}reported/", numbers.Reported.as_view(), name="reported"),
    path(f"{RUN}artifacts/<path:path>", numbers.OneArtifact.as_view(), name="artifact"),
    path("plan/", plans.Plans.as_view(), name="plan"),
    path("simulate/", simulations.Simulations.as_view(), name="simulate"),
    path("studies/", studies.Studies.as_view(), name="studies"),
    path("studies/<int:pk>/", studies.OneStudy.as_view(), name="study"),
    path("watches/", watches.Watches.as_view(), name="watches"),
    path("watches/<int:pk>/history/", watches.History.as_view(), name="watch-history"),
    path("audit/", views.AuditLog.as_view(), name="audit"),
    path("findings/", views.Findings.as_view(), name="findings"),
]
