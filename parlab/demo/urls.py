"""Addresses of the demo block."""

from django.urls import path

from . import views

urlpatterns = [
    path("demo/sweeps/", views.sweeps, name="demo-sweeps"),
    path("demo/watch/", views.watch_slower, name="demo-watch"),
    path("demo/sweeps/launch/", views.launch_sweeps, name="demo-launch"),
]
