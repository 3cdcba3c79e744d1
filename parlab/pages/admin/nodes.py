"""The admin of nodes."""

import json
from collections.abc import Sequence
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from parlab.fleet.capacity import gpu_count
from parlab.lab.models import ACTIVE_MEMBER_STATES, Node
from parlab.lab.services.access.node_keys import node_key_rotate, node_keys_revoke

from .acting import act_on_each, confirmation, pretty


@admin.register(Node)
class NodeAdmin(admin.ModelAdmin[Node]):
    """Nodes register themselves; administrators enable and disable them."""

    list_display = (
        "name",
        "pool",
        "online",
        "is_enabled",
        "busy",
        "slots",
        "gpus",
        "last_heartbeat_at",
        "daemon_version",
    )
    list_filter = ("is_enabled", "pool")
    search_fields = ("name", "pool")
    fields = (
        "name",
        "pool",
        "is_enabled",
        "online",
        "busy",
        "slots",
        "last_heartbeat_at",
        "daemon_version",
        "hardware_as_text",
        "created_at",
    )
    readonly_fields = tuple(name for name in fields if name != "is_enabled")
    actions = ("enable", "disable", "rotate_key", "revoke_key")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        return (
            super()
            .get_queryset(request)
            .annotate(runs_now=Count("members", Q(members__state__in=ACTIVE_MEMBER_STATES)))
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_deleted_objects(
        self, objs: QuerySet[Node] | Sequence[Node], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        blocking = [
            f"{node} has {count} {'attempt' if count == 1 else 'attempts'}; disable it instead"
            for node in objs
            if (count := node.members.count())
        ]
        return [str(node) for node in objs], {"nodes": len(objs)}, set(), blocking

    def save_model(self, request: HttpRequest, obj: Node, form: Any, change: bool) -> None:
        # The node itself writes all other columns and may have changed them since the page was rendered.
        obj.save(update_fields=["is_enabled"])

    @admin.action(description="Enable", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        names = self._set_enabled(queryset, True)
        messages.success(request, f"Enabled {names}; queued runs of its pool can start there within seconds")

    @admin.action(description="Disable", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        names = self._set_enabled(queryset, False)
        messages.success(request, f"Disabled {names}; its runs continue, new runs start on other nodes")

    def has_keys_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("lab.add_nodekey")

    @admin.action(description="Rotate keys", permissions=["keys"])
    def rotate_key(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        def rotate(node: Node) -> str:
            node_key_rotate(node_name=node.name, by=cast(User, request.user))
            return "the node agrees on its next key as soon as its daemon is online; runs continue"

        act_on_each(request, queryset, rotate)

    @admin.action(description="Revoke keys", permissions=["keys"])
    def revoke_key(self, request: HttpRequest, queryset: QuerySet[Node]) -> HttpResponse | None:
        question = "Revoke the keys of these nodes? Their messages are refused at once, and their runs are lost."
        page = confirmation(self, request, queryset, action="revoke_key", question=question, yes="Revoke keys")
        if page is not None:
            return page
        for node in queryset:
            node_keys_revoke(node_name=node.name, by=cast(User, request.user))
            messages.success(request, f"{node}: revoked; to readmit it, create a code in Node keys and enrol it")
        return None

    def _set_enabled(self, queryset: QuerySet[Node], is_enabled: bool) -> str:
        names = list(queryset.values_list("name", flat=True))
        Node.objects.filter(name__in=names).update(is_enabled=is_enabled)
        return ", ".join(names)

    @admin.display(description="online", boolean=True)
    def online(self, node: Node) -> bool:
        return node.is_online

    @admin.display(description="runs now", ordering="runs_now")
    def busy(self, node: Node) -> int:
        return int(getattr(node, "runs_now", 0))

    @admin.display(description="GPUs")
    def gpus(self, node: Node) -> int:
        return gpu_count(node)

    @admin.display(description="hardware")
    def hardware_as_text(self, node: Node) -> SafeString:
        return pretty(json.dumps(node.hardware, indent=2))
