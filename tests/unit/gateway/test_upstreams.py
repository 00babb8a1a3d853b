from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import EndpointId
from forebay.gateway.ports import EndpointView, GatewaySettings, PoolView, Serving
from forebay.gateway.upstreams import Upstreams

VIEW = EndpointView(EndpointId("e"), "127.0.0.1", 8000, base_path="/prefix")


def serving(*views: EndpointView) -> Serving:
    """These endpoints in one pool."""
    return Serving((PoolView("p", views),))


def test_heads_are_built_for_the_endpoint() -> None:
    """A request head has the endpoint's path prefix and host, and one length."""
    upstreams = Upstreams(GatewaySettings())
    upstreams.update(serving(VIEW, EndpointView(EndpointId("six"), "::1", 80)))
    target, six = upstreams.get(EndpointId("e")), upstreams.get(EndpointId("six"))
    assert target is not None
    assert six is not None
    assert target.post_head(b"/v1/x", b"a: b\r\n", 3) == (
        b"POST /prefix/v1/x HTTP/1.1\r\nhost: 127.0.0.1:8000\r\na: b\r\ncontent-length: 3\r\n\r\n"
    )
    assert six.head(b"GET", b"/v", b"", 0) == b"GET /v HTTP/1.1\r\nhost: [::1]:80\r\n\r\n"


def test_known_endpoints_keep_their_connections() -> None:
    """A new view of the same address keeps the pool; another address gets a new one."""
    upstreams = Upstreams(GatewaySettings())
    upstreams.update(serving(VIEW))
    first = upstreams.get(VIEW.id)
    assert first is not None
    upstreams.update(serving(replace(VIEW, reuse_after_stream=False)))
    assert upstreams.get(VIEW.id) is first
    assert not first.view.reuse_after_stream
    upstreams.update(serving(replace(VIEW, port=8001)))
    moved = upstreams.get(VIEW.id)
    assert moved is not None
    assert moved is not first


def test_who_waited_for_an_endpoint_that_is_gone_can_be_sent_there() -> None:
    """The core decides that, and it may come back; so many are kept and no more."""
    upstreams = Upstreams(GatewaySettings())
    upstreams.update(serving(VIEW))
    first = upstreams.get(VIEW.id)
    upstreams.update(serving())
    assert first is upstreams.get(VIEW.id)
    upstreams.update(serving(VIEW))
    assert first is upstreams.get(VIEW.id)
    upstreams.update(serving())
    for number in range(1001):
        upstreams.update(serving(replace(VIEW, id=EndpointId(f"e{number}"))))
    assert None is upstreams.get(VIEW.id)
    assert None is not upstreams.get(EndpointId("e1000"))
    upstreams.close()
    assert None is upstreams.get(EndpointId("e1000"))


def test_changed_settings_hold_for_known_endpoints() -> None:
    """Time limits that a reload changes hold for connections from then on, to old endpoints and to new ones."""
    upstreams = Upstreams(GatewaySettings())
    upstreams.update(serving(VIEW))
    upstreams.reconfigure(GatewaySettings(connect_timeout_s=7.0, upstream_idle_s=3.0))
    other = EndpointView(EndpointId("other"), "127.0.0.1", 8001)
    upstreams.update(serving(VIEW, other))
    for endpoint in (VIEW.id, other.id):
        target = upstreams.get(endpoint)
        assert target is not None
        assert (7.0, 3.0) == (target.upstream.connect_timeout_s, target.upstream.idle_s)
