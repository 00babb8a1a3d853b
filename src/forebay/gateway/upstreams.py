"""Connections to the endpoints: one `Upstream` for each that is served.

An endpoint that is not served any more is not closed: what runs there goes on over the connection it has, idle
connections end by themselves, and those who waited for it when it went may still be sent there.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EndpointId
from forebay.gateway.ports import EndpointView, GatewaySettings, Serving
from forebay.http.client import Upstream

__all__ = ["Target", "Upstreams"]


_FORMER: Final = 1_000
"""Endpoints that are not served any more, kept in case of need."""


class Target:
    """One endpoint, with the parts of a request head that are the same for all requests to it."""

    __slots__ = ("base_path", "host_line", "upstream", "view")

    def __init__(self, view: EndpointView, settings: GatewaySettings) -> None:
        self.view = view
        self.upstream = Upstream(
            view.host,
            view.port,
            connect_timeout_s=settings.connect_timeout_s,
            idle_s=settings.upstream_idle_s,
            tls=view.tls,
        )
        self.base_path = view.base_path.encode("ascii")
        self.host_line = _host_line(view)

    def take(self, view: EndpointView) -> None:
        """Another view of the same address."""
        self.view = view
        self.host_line = _host_line(view)

    def is_at(self, view: EndpointView) -> bool:
        """True if this view means the same address."""
        known = self.view
        same_tls = known.tls is view.tls
        return same_tls and (known.host, known.port, known.base_path) == (
            view.host,
            view.port,
            view.base_path,
        )

    def post_head(self, target: bytes, forward: bytes, body_bytes: int) -> bytes:
        """A whole request head. There is exactly one framing header, whatever the client used."""
        return b"POST %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            self.base_path,
            target,
            self.host_line,
            forward,
            body_bytes,
        )

    def head(self, method: bytes, target: bytes, forward: bytes, body_bytes: int) -> bytes:
        """A whole head of a request of any kind."""
        framing = b"content-length: %d\r\n" % body_bytes if body_bytes or method != b"GET" else b""
        return b"%b %b%b HTTP/1.1\r\n%b%b%b\r\n" % (
            method,
            self.base_path,
            target,
            self.host_line,
            forward,
            framing,
        )


class Upstreams:
    """All endpoints by id."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._targets: dict[EndpointId, Target] = {}
        self._former: dict[EndpointId, Target] = {}
        """Served no more, the longest ago first."""

    def update(self, serving: Serving) -> None:
        """Take over what is served now."""
        views = {endpoint.id: endpoint for pool in serving.pools for endpoint in pool.endpoints}
        for endpoint_id in [known for known in self._targets if known not in views]:
            self._former[endpoint_id] = self._targets.pop(endpoint_id)
            if len(self._former) > _FORMER:
                del self._former[next(iter(self._former))]
        for endpoint_id, view in views.items():
            known = self._targets.get(endpoint_id) or self._former.pop(endpoint_id, None)
            if known is None or not known.is_at(view):
                self._targets[endpoint_id] = Target(view, self._settings)
            else:
                known.take(view)
                self._targets[endpoint_id] = known

    def reconfigure(self, settings: GatewaySettings) -> None:
        """For connections from now on."""
        self._settings = settings
        for target in (*self._targets.values(), *self._former.values()):
            target.upstream.connect_timeout_s = settings.connect_timeout_s
            target.upstream.idle_s = settings.upstream_idle_s

    def get(self, endpoint_id: EndpointId) -> Target | None:
        """The endpoint, also one that was served until lately; None if nobody knows it."""
        return self._targets.get(endpoint_id) or self._former.get(endpoint_id)

    def close(self) -> None:
        """Closes every connection."""
        for target in (*self._targets.values(), *self._former.values()):
            target.upstream.close()
        self._targets.clear()
        self._former.clear()


def _host_line(view: EndpointView) -> bytes:
    """The lines that begin every head: the host, and our own key where the engine wants one."""
    host = f"[{view.host}]" if ":" in view.host else view.host
    line = f"host: {host}:{view.port}\r\n".encode("ascii")
    return line + b"authorization: Bearer %b\r\n" % view.own_key if view.own_key else line
