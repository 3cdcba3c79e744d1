"""The API of Kubernetes in plain JSON, for what the tests do themselves: nodes, controllers, looking."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """One user of an API server; each thread has a connection of its own."""

    def __init__(self, server: str, token: str, authority: str) -> None:
        self.server, self.token, self.authority = server, token, authority
        self._tls = ssl.create_default_context(cafile=authority)
        self._local = threading.local()

    @classmethod
    def of(cls, config: Path) -> Api:
        """Read a configuration that `kubeconfig` wrote."""
        content = json.loads(config.read_text())
        cluster = content["clusters"][0]["cluster"]
        return cls(cluster["server"], content["users"][0]["user"]["token"], cluster["certificate-authority"])

    def kubeconfig(self, namespace: str = "default") -> Object:
        """Return the configuration of clients of this user."""
        cluster = {"server": self.server, "certificate-authority": self.authority}
        context = {"cluster": "plane", "user": "user", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": self.token}}],
            "contexts": [{"name": "plane", "context": context}],
        }

    def get(self, path: str, **query: Any) -> Object:
        return self.call("GET", path, query=query)

    def items(self, path: str, **query: Any) -> list[Object]:
        items: list[Object] = self.get(path, **query)["items"]
        return items

    def find(self, path: str) -> Object | None:
        """Return an object, or None if there is none of this name."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Object, kind: str = MERGE) -> Object:
        return self.call("PATCH", path, body, kind=kind)

    def delete(self, path: str, body: Object | None = None) -> None:
        """Delete an object, unless it is gone already."""
        try:
            self.call("DELETE", path, body or {})
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def apply(self, manifest: Object, namespace: str = "default", *, is_dry: bool = False) -> Object:
        """Create an object of any kind, or change it to what its manifest states; `is_dry` only checks."""
        path, query = self.place(manifest, namespace), {"dryRun": "All"} if is_dry else {}
        try:
            return self.call("POST", path, manifest, query=query)
        except ApiError as error:
            if error.status != 409:
                raise
        return self.call("PATCH", f"{path}/{manifest['metadata']['name']}", manifest, kind=MERGE, query=query)

    def place(self, manifest: Object, namespace: str = "default") -> str:
        """Return the path of the objects of a manifest's kind; raises LookupError for a kind that is not served."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            served = self.get(root)["resources"]
        except ApiError as error:
            raise LookupError(f"{version} is not served") from error
        found = [each for each in served if each["kind"] == kind and "/" not in each["name"]]
        if not found:
            raise LookupError(f"{kind} of {version} is not served")
        within = manifest["metadata"].get("namespace", namespace)
        scope = f"/namespaces/{within}" if found[0]["namespaced"] else ""
        return f"{root}{scope}/{found[0]['name']}"

    def watch(self, path: str, *, version: str, seconds: int = 60, **query: Any) -> Iterator[tuple[str, Object]]:
        """Yield type and object of each change since a resource version, until the server ends the answer."""
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": seconds}
        connection = self._connect(seconds + 10)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=self._headers())
            answer = connection.getresponse()
            if answer.status != 200:
                raise ApiError(answer.status, answer.read().decode(errors="replace"))
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]
        finally:
            connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = "application/json",
        query: Object | None = None,
    ) -> Object:
        """Send a request and return the answer; raises ApiError, or OSError while the server is away."""
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body).encode()
        status, text = self._exchange(method, target, content, kind)
        if status >= 300:
            raise ApiError(status, text)
        answer: Object = json.loads(text)
        return answer

    def text(self, path: str) -> str:
        """Return an answer that is no JSON; empty while the server is away."""
        try:
            status, text = self._exchange("GET", path, None, "")
        except (OSError, http.client.HTTPException):
            return ""
        return text if status == 200 else ""

    def _exchange(self, method: str, target: str, content: bytes | None, kind: str) -> tuple[int, str]:
        headers = self._headers() | ({"Content-Type": kind} if content is not None else {})
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        is_new = connection is None
        connection = connection or self._connect(30)
        try:
            connection.request(method, target, content, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._local.connection = None
            if is_new:
                raise error if isinstance(error, OSError) else ConnectionError(repr(error)) from error
            return self._exchange(method, target, content, kind)  # the server has closed an idle connection
        self._local.connection = connection
        return answer.status, text

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        parts = urlsplit(self.server)
        assert parts.hostname
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=self._tls)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
