"""Notifications: events of `lab` -> deliveries to webhooks and mail addresses."""
