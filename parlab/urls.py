"""URL routes of all applications."""

from django.contrib import admin
from django.urls import include, path

from parlab.pages.admin.acting import view_on_site
from parlab.serve.metrics.view import metrics
from parlab.serve.readiness import ready

urlpatterns = [
    path("ready", ready),
    path("metrics", metrics),
    path("admin/r/<int:content_type_id>/<path:object_id>/", view_on_site, name="view-on-site"),
    path("admin/", admin.site.urls),
    path("", include("parlab.tracking.wandb.urls")),
    path("", include("parlab.tracking.mlflow.urls")),
    path("", include("parlab.tracking.stream_views")),
    path("api/", include("parlab.api.urls")),
    path("", include("parlab.demo.urls")),
    path("", include("parlab.pages.urls")),
]

handler404 = "parlab.api.errors.unknown_address"
handler500 = "parlab.api.outages.failed_request"
