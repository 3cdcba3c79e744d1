"""The admin of notifications: whom parlab notifies, and what receivers answered."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from parlab.notify.models import Delivery, Subscription
from parlab.notify.services import delivery_retry

from .acting import ReadOnly, act_on_each


@admin.register(Subscription)
class SubscriptionAdmin(admin.ModelAdmin[Subscription]):
    """View, disable and delete subscriptions; users create their own, so that their permissions count."""

    list_display = ("target", "user", "experiment", "topics", "is_enabled", "created_at")
    list_filter = ("channel", "is_enabled", ("user", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "experiment")
    search_fields = ("url", "user__username", "experiment__name")
    fields = ("user", "channel", "url", "experiment", "topics", "is_enabled", "base_url", "created_at")
    readonly_fields = ("user", "channel", "url", "experiment", "topics", "base_url", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.display(description="target")
    def target(self, subscription: Subscription) -> str:
        return subscription.url if subscription.is_webhook else f"mail to {subscription.user.email or '(no address)'}"


@admin.register(Delivery)
class DeliveryAdmin(ReadOnly, admin.ModelAdmin[Delivery]):
    """What was sent, with the last answer; failed deliveries can be sent again."""

    list_display = ("event", "subscription", "state", "status", "tries", "last_try_at", "next_try_at")
    list_filter = ("state", "subscription__channel")
    list_select_related = ("event", "subscription__user", "subscription__experiment")
    fields = (*list_display, "answer", "took_ms", "created_at")
    actions = ("send_again",)

    def has_send_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notify.change_subscription")

    @admin.action(description="Send again", permissions=["send"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        act_on_each(
            request, queryset, lambda each: "queued" if delivery_retry(delivery=each) else f"unchanged, {each.state}"
        )
