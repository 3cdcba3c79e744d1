"""The admin of refused messages."""

from django.contrib import admin
from django.utils.safestring import SafeString

from parlab.lab.models import RefusedMessage

from .acting import ReadOnly, pretty


@admin.register(RefusedMessage)
class RefusedMessageAdmin(ReadOnly, admin.ModelAdmin[RefusedMessage]):
    """View what was refused in the queues of the server and of nodes."""

    list_display = ("last_at", "queue", "sender", "reason", "count", "size", "first_at")
    list_filter = ("queue",)
    search_fields = ("queue", "sender", "reason", "sample")
    fields = ("queue", "sender", "reason", "count", "size", "first_at", "last_at", "sample_as_text")
    readonly_fields = fields

    @admin.display(description="sample")
    def sample_as_text(self, message: RefusedMessage) -> SafeString:
        return pretty(message.sample)
