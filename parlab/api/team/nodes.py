"""Nodes: which there are, the rates of their health sweeps, and whether they get runs."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.fleet.capacity import used_slots
from parlab.fleet.excluded_nodes import REASON_LENGTH, node_leave_out, node_put_back
from parlab.lab.models import Node
from parlab.watch.health import sweep_order
from parlab.watch.node_health import node_health


class ExclusionItem(drf.Serializer[Any]):
    """A node that gets no runs."""

    host = drf.CharField(allow_blank=True, help_text="Compute node of Slurm; empty: the node itself.")
    cause = drf.CharField(help_text="attempts, health, speed or person.")
    reason = drf.CharField()
    at = drf.DateTimeField()
    until = drf.DateTimeField(allow_null=True, help_text="When it gets runs again by itself.")


class NodeItem(drf.Serializer[Any]):
    """A machine that runs the daemon."""

    name = drf.CharField()
    pool = drf.CharField()
    is_online = drf.BooleanField()
    is_enabled = drf.BooleanField()
    is_draining = drf.BooleanField()
    left_out = drf.CharField(allow_blank=True, help_text="Why it gets only health sweeps; empty if it gets runs.")
    excluded = ExclusionItem(many=True, help_text="This node or its compute nodes of Slurm, while they get no runs.")
    slots = drf.IntegerField()
    used = drf.IntegerField(help_text="Slots in use.")
    hardware = drf.DictField()
    daemon_version = drf.CharField(allow_blank=True)
    last_heartbeat_at = drf.DateTimeField(allow_null=True)


class RateItem(drf.Serializer[Any]):
    """A rate of the last health sweep."""

    title = drf.CharField()
    value = drf.FloatField(allow_null=True)
    unit = drf.CharField()
    peers = drf.IntegerField(help_text="Devices or links of the same kind with a result, this one included.")
    difference = drf.FloatField(allow_null=True, help_text="From the median of the peers: -0.1 is 10 % less.")
    state = drf.CharField()


class NodeHealthItem(NodeItem):
    """A node with its health."""

    rates = RateItem(many=True)
    waiting = drf.IntegerField(help_text="Health sweeps that are ordered and have not ended.")
    measured_at = drf.DateTimeField(allow_null=True)


class NodeRequest(drf.Serializer[Any]):
    """What to do with a node."""

    action = drf.ChoiceField(
        choices=["measure", "leave-out", "put-back"],
        help_text="Order a health sweep; give it no other runs, or give it runs again.",
    )
    reason = drf.CharField(
        required=False, allow_blank=True, default="", max_length=REASON_LENGTH, help_text="To leave it out: why."
    )
    host = drf.CharField(
        required=False, allow_blank=True, default="", max_length=120, help_text="A compute node of Slurm in its place."
    )


class Nodes(APIView):
    """All nodes by name."""

    @extend_schema(operation_id="nodes_list", responses={200: NodeItem(many=True)})
    def get(self, _request: Request) -> Response:
        used = used_slots()
        return Response(NodeItem([_facts(node, used.get(node.pk, 0)) for node in Node.objects.all()], many=True).data)


class OneNode(APIView):
    """A node with its health; POST measures it, leaves it out of dispatch or puts it back."""

    permission_classes = [permissions.IsAuthenticated]
    token_scope = "launch"

    @extend_schema(operation_id="node_read", responses={200: NodeHealthItem, 404: Errors})
    def get(self, _request: Request, name: str) -> Response:
        return Response(_health(get_object_or_404(Node, name=name)))

    @extend_schema(
        operation_id="node_act",
        request=NodeRequest,
        responses={200: NodeHealthItem, 400: Errors, 403: Errors, 404: Errors},
    )
    def post(self, request: Request, name: str) -> Response:
        user: User = user_with("lab.change_node", request)
        node = get_object_or_404(Node, name=name)
        asked = NodeRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        action, reason, host = (asked.validated_data[name] for name in ("action", "reason", "host"))
        with refused("reason" if action == "leave-out" else "action", reason if action == "leave-out" else action):
            if action == "measure":
                sweep_order(node=node, user=user)
            elif action == "leave-out":
                node_leave_out(node=node, reason=reason, by=str(user), host=host)
            else:
                node_put_back(node=node, by=str(user), host=host)
        node.refresh_from_db()
        return Response(_health(node))


def _facts(node: Node, used: int) -> dict[str, Any]:
    excluded = list(node.exclusions.open().order_by("host"))
    own = {name: getattr(node, name) for name in _names(NodeItem) if name not in ("used", "excluded")}
    return {**own, "used": used, "excluded": excluded}


def _names(item: type[drf.Serializer[Any]]) -> list[str]:
    return [str(name) for name in item().fields]


def _health(node: Node) -> dict[str, Any]:
    health = node_health(node)
    rates = [{name: getattr(rate, name) for name in _names(RateItem)} for rate in health.rows]
    measured_at = health.last.at if health.last is not None else None
    facts = {
        **_facts(node, used_slots().get(node.pk, 0)),
        "rates": rates,
        "waiting": health.waiting,
        "measured_at": measured_at,
    }
    return cast("dict[str, Any]", NodeHealthItem(facts).data)
