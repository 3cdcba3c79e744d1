"""Logins by single sign-on: against a real provider, against one that lies, and by the header of a proxy."""
