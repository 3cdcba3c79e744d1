"""Django's admin for all models.

It stands above `fleet`, through which its actions launch, cancel and relaunch runs. Django discovers it as the admin
module of the app `parlab.pages`; URLs and permissions follow the models' own app labels.
"""

from allauth.account.decorators import secure_admin_login
from allauth.account.models import EmailAddress, EmailConfirmation
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin

from .configs import ConfigAdmin
from .devices import DeviceAdmin
from .experiments import ExperimentAdmin
from .node_keys import NodeKeyAdmin
from .nodes import NodeAdmin
from .notifications import DeliveryAdmin, SubscriptionAdmin
from .people import PersonAdmin
from .projects import ProjectAdmin
from .refused import RefusedMessageAdmin
from .runs import RunAdmin
from .snapshots import SnapshotAdmin
from .studies import StudyAdmin
from .tokens import ApiTokenAdmin

__all__ = [
    "ApiTokenAdmin",
    "ConfigAdmin",
    "DeliveryAdmin",
    "DeviceAdmin",
    "ExperimentAdmin",
    "NodeAdmin",
    "NodeKeyAdmin",
    "PersonAdmin",
    "ProjectAdmin",
    "RefusedMessageAdmin",
    "RunAdmin",
    "SnapshotAdmin",
    "StudyAdmin",
    "SubscriptionAdmin",
]

# The login page of the server, with its limits and second factors.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
for model in (EmailAddress, EmailConfirmation, SocialAccount, SocialApp, SocialToken, Authenticator):
    if admin.site.is_registered(model):
        admin.site.unregister(model)
admin.site.site_header = "parlab"
admin.site.site_title = "parlab"
admin.site.index_title = "Administration"
# The menu is that of all pages.
admin.site.enable_nav_sidebar = False
