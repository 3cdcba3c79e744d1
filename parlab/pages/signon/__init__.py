"""Logins: passwords, second factors, single sign-on by OpenID Connect and by the header of a proxy."""
