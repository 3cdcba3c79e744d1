"""What an account must be allowed to do, beyond having one."""

from rest_framework import permissions
from rest_framework.request import Request
from rest_framework.views import APIView


class MayAddRuns(permissions.BasePermission):
    """Everybody reads; what makes runs, launched or imported, needs the right to add them."""

    message = "Your account may not add runs (permission lab.add_run)."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.method in permissions.SAFE_METHODS or request.user.has_perm("lab.add_run")
