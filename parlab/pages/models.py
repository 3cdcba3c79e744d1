"""The models of the app: pages and API share them, so that they are defined below both.

Django creates content types and permissions only for an app that has a module of models.
"""

from parlab.lab.models import Dashboard, PanelLayout, Preference, SavedView, Visit

__all__ = ["Dashboard", "PanelLayout", "Preference", "SavedView", "Visit"]
