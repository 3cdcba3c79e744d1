"""Addresses of the API; /api/schema/ and docs/api.md describe the requests and responses."""

from django.urls import path
from drf_spectacular.views import SpectacularAPIView

from . import plans, simulations, studies, views

app_name = "api"
EXPERIMENT = "experiments/<slug:slug>/"

urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("imports/", views.Imports.as_view(), name="imports"),
    path("experiments/", views.Experiments.as_view(), name="experiments"),
    path(EXPERIMENT, views.OneExperiment.as_view(), name="experiment"),
    path(f"{EXPERIMENT}runs/", views.Runs.as_view(), name="runs"),
    path(f"{EXPERIMENT}runs/<int:number>/", views.OneRun.as_view(), name="run"),
    path(f"{EXPERIMENT}runs/<int:number>/log/", views.Log.as_view(), name="log"),
    path("plan/", plans.Plans.as_view(), name="plan"),
    path("simulate/", simulations.Simulations.as_view(), name="simulate"),
    path("studies/", studies.Studies.as_view(), name="studies"),
    path("studies/<int:pk>/", studies.OneStudy.as_view(), name="study"),
    path("findings/", views.Findings.as_view(), name="findings"),
]
