"""Permissions of the API beyond authentication."""

from typing import cast

from django.contrib.auth.models import User
from rest_framework import permissions
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.views import APIView


class MayAddRuns(permissions.BasePermission):
    """Let everyone read; creating runs, by launch or import, requires the permission lab.add_run."""

    message = "Your account has no permission to add runs (lab.add_run)."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.method in permissions.SAFE_METHODS or request.user.has_perm("lab.add_run")


class MayChangeUsers(permissions.BasePermission):
    """Reading the audit log requires the permission auth.change_user, as on its page."""

    message = "Your account has no permission to read the audit log (auth.change_user)."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.user.has_perm("auth.change_user")


def user_with(permission: str, request: Request) -> User:
    """Return the user of a request; raises PermissionDenied without a permission like `lab.change_finding`."""
    if not request.user.has_perm(permission):
        raise PermissionDenied(f"Your account has no permission for this ({permission}).")
    return cast(User, request.user)
