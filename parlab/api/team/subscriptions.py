"""Webhooks and mails of the user of the token, and what was sent."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused, stated_experiment
from parlab.api.serializers import Errors
from parlab.notify import services as notify
from parlab.notify.models import Delivery, Subscription
from parlab.notify.topics import TOPICS

_LISTED = 200


class SubscriptionRequest(drf.Serializer[Any]):
    """A subscription to create."""

    channel = drf.ChoiceField(Subscription.Channel.values)
    service = drf.ChoiceField(
        Subscription.Style.values, required=False, default="parlab", help_text="Whose message a webhook posts."
    )
    topics = drf.ListField(child=drf.ChoiceField(list(TOPICS)), min_length=1)
    url = drf.CharField(required=False, default="", max_length=2_000, help_text="Address that a webhook posts to.")
    experiment = drf.SlugField(required=False, allow_null=True, help_text="Slug; by default all experiments.")


class SubscriptionChange(drf.Serializer[Any]):
    """What to change; omitted fields stay as they are."""

    topics = drf.ListField(child=drf.ChoiceField(list(TOPICS)), required=False, min_length=1)
    url = drf.CharField(required=False, max_length=2_000)
    is_enabled = drf.BooleanField(required=False)


class SubscriptionItem(drf.ModelSerializer[Subscription]):
    """A webhook or a mail address and the events that it gets."""

    experiment = drf.CharField(source="experiment.slug", allow_null=True, default=None)
    service = drf.CharField(source="style", help_text="Whose message a webhook posts.")
    secret = drf.CharField(help_text="Key of the signature of a webhook; see docs/use/watch.md.")

    class Meta:
        model = Subscription
        fields = ["id", "channel", "service", "url", "topics", "experiment", "is_enabled", "secret", "created_at"]


class DeliveryItem(drf.ModelSerializer[Delivery]):
    """One event for one subscription, with its last answer."""

    event = drf.CharField(source="event.kind")

    class Meta:
        model = Delivery
        fields = [
            "id", "subscription", "event", "state", "tries", "status", "answer", "took_ms",
            "last_try_at", "next_try_at", "created_at",
        ]  # fmt: skip


class Subscriptions(APIView):
    """The subscriptions of the user; POST creates one."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="subscriptions_list", responses={200: SubscriptionItem(many=True)})
    def get(self, request: Request) -> Response:
        return Response(SubscriptionItem(_own(request), many=True).data)

    @extend_schema(
        operation_id="subscriptions_create", request=SubscriptionRequest, responses={201: SubscriptionItem, 400: Errors}
    )
    def post(self, request: Request) -> Response:
        asked = SubscriptionRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = dict(asked.validated_data)
        slug = options.pop("experiment", None)
        options["style"] = options.pop("service")
        experiment = stated_experiment(slug) if slug else None
        with refused("url", options["url"]):
            made = notify.subscription_create(
                user=cast(User, request.user),
                experiment=experiment,
                base_url=request.build_absolute_uri("/"),
                **options,
            )
        return Response(SubscriptionItem(made).data, status=status.HTTP_201_CREATED)


class OneSubscription(APIView):
    """Change or delete a subscription of the user."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(
        operation_id="subscriptions_change", request=SubscriptionChange, responses={200: SubscriptionItem, 400: Errors}
    )
    def patch(self, request: Request, pk: int) -> Response:
        row = get_object_or_404(_own(request), pk=pk)
        asked = SubscriptionChange(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        if "url" in options and not row.is_webhook:
            remedy = "change the mail address of your account"
            raise Problem("mails have no url", field="url", value=options["url"], remedy=remedy)
        with refused("url", options.get("url")):
            notify.subscription_change(
                subscription=row,
                topics=options.get("topics", row.topics),
                is_enabled=options.get("is_enabled", row.is_enabled),
                url=options.get("url"),
            )
        return Response(SubscriptionItem(row).data)

    @extend_schema(operation_id="subscriptions_delete", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        get_object_or_404(_own(request), pk=pk).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


class SubscriptionTest(APIView):
    """Send a test event to a subscription of the user."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="subscriptions_test", request=None, responses={202: DeliveryItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        row = get_object_or_404(_own(request), pk=pk)
        with refused("id", pk):
            delivery = notify.subscription_test(subscription=row)
        return Response(DeliveryItem(delivery).data, status=status.HTTP_202_ACCEPTED)


class Deliveries(APIView):
    """What was sent to the subscriptions of the user, newest first."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="deliveries_list", responses={200: DeliveryItem(many=True)})
    def get(self, request: Request) -> Response:
        rows = Delivery.objects.filter(subscription__in=_own(request)).select_related("event").order_by("-pk")
        return Response(DeliveryItem(rows[:_LISTED], many=True).data)


class DeliveryRetry(APIView):
    """Send a failed delivery again."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="deliveries_retry", request=None, responses={200: DeliveryItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        rows = Delivery.objects.filter(subscription__in=_own(request)).select_related("event")
        row = get_object_or_404(rows, pk=pk)
        if not notify.delivery_retry(delivery=row):
            remedy = "only a failed delivery is sent again"
            raise Problem(f"the delivery is {row.state}", field="id", value=pk, remedy=remedy)
        return Response(DeliveryItem(rows.get(pk=pk)).data)


def _own(request: Request) -> Any:
    return Subscription.objects.filter(user=cast(User, request.user)).select_related("experiment", "user")
