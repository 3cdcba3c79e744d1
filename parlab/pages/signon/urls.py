"""Addresses of logins. Of allauth's, only those that are used here; its names are those that it looks for."""

from __future__ import annotations

from allauth.account.views import account_inactive, reauthenticate
from django.urls import include, path

from . import back_channel, views

urlpatterns = [
    path("login/", views.login, name="login"),
    path("login/", views.login, name="account_login"),
    path("login/sso/", views.signon, name="signon"),
    path("login/sso/callback/", views.signon_callback, name="signon-callback"),
    path("login/sso/ended/", back_channel.signon_ended, name="signon-ended"),
    path("logout/", views.log_out, name="logout"),
    path("logout/", views.log_out, name="account_logout"),
    path("account/inactive/", account_inactive, name="account_inactive"),
    path("account/reauthenticate/", reauthenticate, name="account_reauthenticate"),
    path("account/second-factor/", include("allauth.mfa.urls")),
]
