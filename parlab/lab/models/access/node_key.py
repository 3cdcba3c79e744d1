from django.conf import settings
from django.db import models


class NodeKey(models.Model):
    """A key of one node: a one-time code until the node has enrolled with it, then the key that signs its messages.

    Neither code nor key can be read from this row without the server's node key.
    """

    node_name = models.CharField(max_length=120, db_index=True, help_text="Name of the daemon, as in --node.")
    key_id = models.CharField(max_length=32, unique=True, editable=False)
    wrapped = models.CharField(max_length=64, blank=True, editable=False, help_text="The key, encrypted.")
    public_digest = models.CharField(max_length=64, blank=True, editable=False)
    code_expires_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="Empty: a rotation.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    enrolled_at = models.DateTimeField(null=True, blank=True, help_text="When the node has agreed on the key.")
    used_at = models.DateTimeField(null=True, blank=True, help_text="When the node has first signed with it.")
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    is_replaced = models.BooleanField(default=False, help_text="Revoked because the node signs with its next key.")

    class Meta:
        ordering = ["node_name", "-pk"]

    def __str__(self) -> str:
        return f"{self.node_name} {self.key_id}"

    @property
    def state(self) -> str:
        if self.revoked_at is not None:
            return "replaced" if self.is_replaced else "revoked"
        if self.enrolled_at is not None:
            return "active" if self.used_at is not None else "enrolled"
        return "code" if self.code_expires_at is not None else "rotating"
