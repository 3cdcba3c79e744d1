"""The API server, through the official client: JSON in, JSON out, and whether it refused or is away."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3
from kubernetes import client as official
from kubernetes import config as kubeconfig

from runners.node.jobs.system import SystemAway, SystemRefused

REQUEST_S = 10.0
CONNECT_S = 3.0
PAGE = 500
_AWAY = (0, 408, 429, 500, 502, 503, 504)

Object = Mapping[str, Any]


class KubernetesAway(SystemAway):
    """Raised if the API server does not answer; the caller tries again."""


class KubernetesRefused(SystemRefused):
    """Raised with the message of the API server if it refuses a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    @property
    def is_quota(self) -> bool:
        """Whether a quota of the namespace is used up."""
        return self.status == 403 and "exceeded quota" in str(self)

    @property
    def is_forbidden(self) -> bool:
        """Whether the account lacks a right; admission refuses a pod with the same status, and names no verb."""
        return self.status == 401 or (self.status == 403 and " cannot " in str(self))


_CONTENT = {"PATCH": "application/merge-patch+json"}


class Api:
    """One namespace of a cluster."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    @classmethod
    def connect(cls, namespace: str, context: str | None) -> Api:
        """Read the kubeconfig, or in a pod its service account. Raises ValueError with the remedy."""
        settings = official.Configuration()
        try:
            if context is None and _is_in_pod():
                kubeconfig.load_incluster_config(settings)
            else:
                path = os.environ.get("KUBECONFIG") or None
                kubeconfig.load_kube_config(path, context, client_configuration=settings)
        except kubeconfig.ConfigException as error:
            where = f"--context {context}" if context else "KUBECONFIG"
            raise ValueError(f"{where}: no cluster to talk to: {error}; set KUBECONFIG, or start in a pod") from None
        settings.retries = False
        settings.connection_pool_maxsize = 8
        return cls(official.ApiClient(settings), namespace)

    def path(self, group: str, resource: str, name: str = "") -> str:
        """Return the path of objects in the namespace; `group` like v1 or batch/v1."""
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return f"{root}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: Any) -> Any:
        """Return an object or a list; None if there is none."""
        try:
            return self._json("GET", path, query)
        except KubernetesRefused as error:
            if error.status == 404:
                return None
            raise

    def pages(self, path: str, **query: Any) -> Iterator[Object]:
        """Yield the pages of a list."""
        token = None
        while True:
            page = self._json("GET", path, {**query, "limit": PAGE, **({"continue": token} if token else {})})
            yield page
            token = page.get("metadata", {}).get("continue")
            if not token:
                return

    def create(self, path: str, content: Object) -> Any:
        """Create an object and return it; None if there is one of this name."""
        try:
            return self._json("POST", path, {}, content)
        except KubernetesRefused as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return None
            raise

    def replace(self, path: str, content: Object) -> Any:
        """Replace an object and return it; None if it has changed meanwhile."""
        try:
            return self._json("PUT", path, {}, content)
        except KubernetesRefused as error:
            if error.status == 409:
                return None
            raise

    def annotate(self, path: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of an object, if it is there."""
        try:
            self._json("PATCH", path, {}, {"metadata": {"annotations": dict(annotations)}})
        except KubernetesRefused as error:
            if error.status != 404:
                raise

    def delete(self, path: str, *, uid: str = "") -> bool:
        """Delete an object, and what it owns; return whether there was one."""
        content: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            content["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", path, {}, content)
        except KubernetesRefused as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def watch(self, path: str, timeout_s: int, **query: Any) -> Iterator[Object]:
        """Yield the events of a watch until it ends."""
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": timeout_s}
        answer = self._request("GET", path, query, None, timeout_s + REQUEST_S)
        buffer = b""
        try:
            with _translated():
                for piece in answer.stream(1 << 16, decode_content=True):
                    *lines, buffer = (buffer + piece).split(b"\n")
                    for line in filter(None, lines):
                        yield json.loads(line)
        finally:
            with contextlib.suppress(Exception):
                answer.close()

    def _json(self, method: str, path: str, query: Mapping[str, Any], content: Object | None = None) -> Any:
        answer = self._request(method, path, query, content, REQUEST_S)
        with _translated():
            return json.loads(answer.data)

    def _request(
        self, method: str, path: str, query: Mapping[str, Any], content: Object | None, within_s: float
    ) -> Any:
        with _translated():
            return self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": _CONTENT.get(method, "application/json")},
                body=content,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(CONNECT_S, within_s),
            )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn the errors of the client into Away and Refused."""
    try:
        yield
    except official.ApiException as error:
        status = int(error.status or 0)
        answer = _answer(error.body)
        message = " ".join(str(answer.get("message") or error.reason or "").split())[:600]
        if status in _AWAY:
            raise KubernetesAway(f"the API server answers {status}: {message[:300]}") from None
        raise KubernetesRefused(status, str(answer.get("reason") or ""), message) from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise KubernetesAway(
            f"{' '.join(str(error).split())[:300]}; check the API server with kubectl get pods"
        ) from None


def _answer(body: Any) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (TypeError, ValueError):
        return {}
    return answer if isinstance(answer, Mapping) else {}


def _is_in_pod() -> bool:
    try:
        with open(kubeconfig.incluster_config.SERVICE_TOKEN_FILENAME):
            return True
    except OSError:
        return False
