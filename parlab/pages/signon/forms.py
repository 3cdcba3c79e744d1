"""The form of the login page, which slows down guessing of passwords."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import LoginForm
from django.core.exceptions import ValidationError

from parlab.lab.services.access.logins import login_failed, login_succeeded, login_wait_s


class PasswordLogin(LoginForm):  # type: ignore[misc]  # allauth has no types
    """A login that must wait after several failures with this name from this address."""

    def add_prefix(self, field_name: str) -> str:
        """Keep the name that scripts and password managers know."""
        return "username" if field_name == "login" else field_name

    def clean(self) -> dict[str, Any]:
        place = {
            "username": str(self.cleaned_data.get("login") or ""),
            "address": str(self.request.META.get("REMOTE_ADDR", "")),
        }
        if wait_s := login_wait_s(**place):
            text = f"Too many failed logins with this name from this address. Try again in {_duration(wait_s)}."
            raise ValidationError(text, code="throttled")
        try:
            cleaned: dict[str, Any] = super().clean()
        except ValidationError:
            login_failed(**place)
            raise
        if self.user is not None:
            login_succeeded(**place)
        return cleaned

    @property
    def wait_text(self) -> str:
        """Why a login has to wait; empty if it was refused for another reason."""
        errors = self.errors.as_data().get("__all__", [])
        return next((str(error.message) for error in errors if error.code == "throttled"), "")


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"
