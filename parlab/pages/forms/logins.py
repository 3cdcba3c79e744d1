"""Forms of the login pages, which slow down guessing of passwords."""

from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from parlab.lab.services.access.logins import login_failed, login_succeeded, login_wait_s


class Throttled(AuthenticationForm):
    """A login that must wait after several failures with this name from this address."""

    def clean(self) -> dict[str, Any]:
        username = str(self.cleaned_data.get("username") or "")
        address = str(self.request.META.get("REMOTE_ADDR", "")) if self.request is not None else ""
        wait_s = login_wait_s(username=username, address=address)
        if wait_s:
            text = f"Too many failed logins with this name from this address. Try again in {_duration(wait_s)}."
            raise ValidationError(text, code="throttled")
        try:
            cleaned = super().clean()
        except ValidationError:
            login_failed(username=username, address=address)
            raise
        login_succeeded(username=username, address=address)
        return cleaned

    @property
    def wait_text(self) -> str:
        """Why a login has to wait; empty if it was refused for another reason."""
        errors = self.errors.as_data().get("__all__", [])
        return next((str(error.message) for error in errors if error.code == "throttled"), "")


class ThrottledAdmin(Throttled, AdminAuthenticationForm):
    """The same for the login of the admin."""


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"
