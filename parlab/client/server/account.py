"""The part of `parlab.Api` about the user: account, tokens, notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.client.http import Connection


class Account:
    """Account, tokens, subscriptions and deliveries of the user."""

    connection: Connection

    def account(self) -> dict[str, Any]:
        """Return the name, mail address, groups and permissions of the user, and the scopes of the token."""
        return dict(self.connection.json("GET", "/api/account/"))

    def change_email(self, email: str) -> dict[str, Any]:
        """Set where mails go; an empty address ends mails."""
        return dict(self.connection.json("PATCH", "/api/account/", {"email": email}))

    def tokens(self) -> list[dict[str, Any]]:
        """Return the tokens of the user that are in force."""
        return list(self.connection.json("GET", "/api/account/tokens/"))

    def create_token(self, name: str, **options: Any) -> dict[str, Any]:
        """Create a token with `scopes` and a lifetime in `days`; only this answer holds its `secret`."""
        return dict(self.connection.json("POST", "/api/account/tokens/", {"name": name, **options}))

    def revoke_token(self, token: int) -> None:
        """Revoke a token of the user, by its ID."""
        self.connection.json("DELETE", f"/api/account/tokens/{token}/")

    def columns(self, name: str) -> dict[str, Any]:
        """Return the columns of the list `experiments` or `runs`, and those that the user sees."""
        return dict(self.connection.json("GET", f"/api/columns/{name}/"))

    def choose_columns(self, name: str, shown: Sequence[str]) -> dict[str, Any]:
        """Choose the columns of a list that the user sees."""
        return dict(self.connection.json("PUT", f"/api/columns/{name}/", {"shown": list(shown)}))

    def take_as_seen(self, experiment: str | None = None) -> None:
        """Take everything that changed on Home, or in an experiment, as seen."""
        self.connection.json("POST", "/api/seen/", {"experiment": experiment})

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the webhooks and mails of the user."""
        return list(self.connection.json("GET", "/api/subscriptions/"))

    def subscribe(
        self, topics: Sequence[str], *, url: str = "", channel: str = "webhook", experiment: str | None = None
    ) -> dict[str, Any]:
        """Send events to a webhook, or to the mail address of the user with channel="mail"."""
        body = {"channel": channel, "topics": list(topics), "url": url, "experiment": experiment}
        return dict(self.connection.json("POST", "/api/subscriptions/", body))

    def change_subscription(self, subscription: int, **changes: Any) -> dict[str, Any]:
        """Change `topics`, `url` or `is_enabled` of a subscription, by its ID."""
        return dict(self.connection.json("PATCH", f"/api/subscriptions/{subscription}/", changes))

    def test_subscription(self, subscription: int) -> dict[str, Any]:
        """Send a test event; return its delivery."""
        return dict(self.connection.json("POST", f"/api/subscriptions/{subscription}/test/"))

    def unsubscribe(self, subscription: int) -> None:
        """Delete a subscription, by its ID."""
        self.connection.json("DELETE", f"/api/subscriptions/{subscription}/")

    def deliveries(self) -> list[dict[str, Any]]:
        """Return what was sent to the subscriptions of the user, newest first, with the last answer of each."""
        return list(self.connection.json("GET", "/api/deliveries/"))

    def retry_delivery(self, delivery: int) -> dict[str, Any]:
        """Send a failed delivery again, by its ID."""
        return dict(self.connection.json("POST", f"/api/deliveries/{delivery}/retry/"))
