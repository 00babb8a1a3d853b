"""A snapshot of a pool with one endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay.admission.controller import Controller
from forebay.admission.events import EndpointsChanged
from forebay.admission.model import EndpointState
from forebay.admission.settings import PoolSettings, Settings
from forebay.admission.snapshot import Snapshot
from tests.unit.observe.records import ENDPOINT


def a_snapshot(*, pool: str = "p", predicted_wait_s: float = 1.25, **endpoint: Any) -> Snapshot:
    """Three requests running, one draining, two waiting; with these changes to the endpoint."""
    controller = Controller(Settings((PoolSettings(pool),)), 0.0)
    controller.handle(EndpointsChanged(pool, (ENDPOINT,)), 0.0)
    empty = controller.snapshot()
    (view,) = empty.pools
    figures: dict[str, Any] = {
        "state": EndpointState.UP,
        "running_requests": 3,
        "draining_requests": 1,
        "work_gpu_s": 4.5,
        "request_limit": 8,
        "preemptions_total": 7,
        "sample_took_s": 0.01,
    }
    classes = tuple(
        replace(entry, waiting_requests=2, waiting_gpu_s=2.5, predicted_wait_s=predicted_wait_s)
        for entry in view.classes
    )
    endpoints = (replace(view.endpoints[0], **{**figures, **endpoint}),)
    return replace(empty, pools=(replace(view, classes=classes, endpoints=endpoints, learning=True),))
