"""The admin of the keys of nodes."""

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from parlab.lab.models import NodeKey
from parlab.lab.services.access.node_keys import node_code_create

_CODE = "code_shown_once"


class CodeForm(forms.ModelForm[NodeKey]):
    """The name of the node that may enrol."""

    class Meta:
        model = NodeKey
        fields = ("node_name",)


@admin.register(NodeKey)
class NodeKeyAdmin(admin.ModelAdmin[NodeKey]):
    """Create one-time codes; the list of nodes rotates and revokes keys. Deleting all keys readmits the shared key."""

    form = CodeForm
    list_display = ("node_name", "key_id", "state", "created_at", "created_by", "enrolled_at", "used_at", "revoked_at")
    list_select_related = ("created_by",)
    search_fields = ("node_name", "key_id")
    fields = ("node_name", "key_id", "state", "created_at", "enrolled_at", "used_at", "revoked_at", "revoked_by")
    readonly_fields = fields

    def get_fields(self, request: HttpRequest, obj: NodeKey | None = None) -> Any:
        return super().get_fields(request, obj) if obj else ("node_name",)

    def get_readonly_fields(self, request: HttpRequest, obj: NodeKey | None = None) -> Any:
        return super().get_readonly_fields(request, obj) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: NodeKey, form: Any, change: bool) -> None:
        code = node_code_create(node_name=obj.node_name, by=cast(User, request.user))
        # The code itself must not reach the log of changes, which shows the names of objects.
        obj.pk = NodeKey.objects.get(key_id=code.partition("-")[0]).pk
        obj.refresh_from_db()
        setattr(obj, _CODE, code)

    def response_add(self, request: HttpRequest, obj: NodeKey, post_url_continue: str | None = None) -> HttpResponse:
        """Show the code in the response to this request only."""
        context = {**self.admin_site.each_context(request), "title": "One-time code", "opts": self.model._meta}
        response = TemplateResponse(
            request, "admin/lab/node_code.html", {**context, "code": getattr(obj, _CODE), "row": obj}
        )
        response.headers["Cache-Control"] = "no-store"
        return response
