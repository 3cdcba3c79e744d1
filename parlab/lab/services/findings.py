"""Findings as rows: computed by rules, kept in step with the numbers, acknowledged by people."""

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Experiment, Finding

from . import storable


def findings_refresh(*, experiment: Experiment) -> list[Finding]:
    """Compute what the rules say of an experiment's runs and documents, and keep exactly that.

    Findings that still hold keep their acknowledgements; those that no longer hold go.
    """
    raise NotImplementedError


@transaction.atomic
def finding_acknowledge(*, finding: Finding, user: User, reason: str) -> Finding:
    """Note that a person has looked at a finding, and why it may stand; raises ValueError without a reason."""
    reason = storable.text(reason).strip()
    if not reason:
        raise ValueError("reason is empty; say why the finding may stand, so that others need not ask")
    Finding.objects.filter(pk=finding.pk).update(
        acknowledged_by=user, acknowledged_at=timezone.now(), acknowledged_reason=reason
    )
    finding.refresh_from_db()
    return finding


@transaction.atomic
def finding_reopen(*, finding: Finding) -> Finding:
    """Take an acknowledgement back."""
    Finding.objects.filter(pk=finding.pk).update(acknowledged_by=None, acknowledged_at=None, acknowledged_reason="")
    finding.refresh_from_db()
    return finding
