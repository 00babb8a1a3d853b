"""Which endpoints there are, and what is heard of them: readings, descriptions, failures, the replica's share.

Owns which pool each endpoint belongs to. It decides about no request: what it hears may make room, change costs or
leave a pool without any endpoint, and whoever has to know is told (`repricing`, `watch`, `patience`, `idle_guard`);
then the pool is filled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from forebay.admission.common_law import learn_law
from forebay.admission.endpoints import Endpoint
from forebay.admission.errors import MisuseError
from forebay.admission.events import (
    Described,
    EndpointDrained,
    EndpointsChanged,
    Failure,
    GpusSampled,
    Sampled,
    SampleMissed,
    ShareChanged,
)
from forebay.admission.idle_guard import IdleGuard
from forebay.admission.model import EndpointId, EndpointState
from forebay.admission.outliers import speak_against
from forebay.admission.patience import Patience
from forebay.admission.pools import Pool
from forebay.admission.repricing import Repricing
from forebay.admission.unstreamed import advance_unstreamed
from forebay.admission.watch import Watch

Heard: TypeAlias = SampleMissed | Described | EndpointsChanged | EndpointDrained | ShareChanged | GpusSampled


class Roster:
    """The endpoints of one controller's pools."""

    def __init__(
        self,
        repricing: Repricing,
        watch: Watch,
        patience: Patience,
        guard: IdleGuard,
        fill: Callable[[Pool, float], None],
    ) -> None:
        """See the module.

        Args:
            fill: look for waiters that can start now.
        """
        self.pools: dict[str, Pool] = {}
        self._home: dict[EndpointId, Pool] = {}
        self._repricing = repricing
        self._watch = watch
        self._patience = patience
        self._guard = guard
        self._fill = fill

    def of(self, endpoint_id: EndpointId) -> tuple[Pool | None, Endpoint | None]:
        """An endpoint and its pool; None for both if it is gone."""
        pool = self._home.get(endpoint_id)
        return pool, pool.endpoints.get(endpoint_id) if pool is not None else None

    def drop_pool(self, name: str) -> None:
        """A pool is not configured any more."""
        for endpoint in self.pools.pop(name).endpoints.values():
            self._home.pop(endpoint.id, None)
            for draining in endpoint.draining:
                draining.release()  # nobody waits for it
            endpoint.draining.clear()

    def heard(self, event: Heard, now: float) -> None:
        """Something was found out, or changed by somebody. Raises: MisuseError."""
        match event:
            case SampleMissed():
                self._sample_missed(event, now)
            case Described():
                self._described(event, now)
            case EndpointsChanged():
                self._endpoints_changed(event, now)
            case EndpointDrained():
                self._endpoint_drained(event, now)
            case ShareChanged():
                self._share_changed(event, now)
            case GpusSampled():
                pool = self.pools.get(event.pool)
                if pool is not None:
                    pool.gpu_load.read(min(max(event.busy, 0.0), 1.0), event.at_s)
            case _:
                assert_never(event)

    def sampled(self, event: Sampled, now: float) -> None:
        """A reading of an engine came in."""
        pool, endpoint = self.of(event.endpoint)
        if pool is None or endpoint is None:
            return
        counted = endpoint.prompt_count.sampled(
            event.sample, pending=endpoint.pending, in_flight=endpoint.sequences_in_flight
        )
        if counted is not None:
            pool.pricing.learn_counted(counted)
        endpoint.take_sample(event.sample, now)
        endpoint.hear(event.sample.unready)
        advance_unstreamed(endpoint, now)
        endpoint.come_up(now)
        self.follow(pool, endpoint, now)
        self._watch.settle_draining(endpoint, event.sample)
        self._watch.try_again(endpoint)
        self._watch.arm(endpoint, pool, now)
        self.check_absence(pool, now)
        self._fill(pool, now)
        self.forget_if_removed(endpoint, pool)  # what it had let go of may have been the last

    def follow(self, pool: Pool, endpoint: Endpoint, now: float) -> None:
        """Something was seen of an engine: its speed may be known better now, and how much of it is in use."""
        pool.follow(endpoint, now)
        if learn_law(pool, now):
            self._repricing.begin(pool, now)

    def _sample_missed(self, event: SampleMissed, now: float) -> None:
        """A reading was due and did not come."""
        pool, endpoint = self.of(event.endpoint)
        if pool is None or endpoint is None:
            return
        # One that could be reached keeps its state: a busy engine may be slow to answer, and of one that has answered
        # nothing at all yet nobody knows whether it can be used.
        if event.unreachable:
            self.unreachable(endpoint, pool, now)
        self.check_absence(pool, now)
        self._fill(pool, now)

    def _described(self, event: Described, now: float) -> None:
        """What an engine is was found out."""
        pool, endpoint = self.of(event.endpoint)
        if pool is None or endpoint is None:
            return
        if event.restarted:
            endpoint.count("restarted")
            pool.pricing.prefixes.homes.forget(endpoint.id)
        endpoint.info = event.info
        if not endpoint.described:
            endpoint.heard_s = now
        endpoint.described = True
        if pool.find_limits():
            self._repricing.begin(pool, now)
        endpoint.come_up(now)
        self.check_absence(pool, now)
        self._fill(pool, now)

    def _endpoints_changed(self, event: EndpointsChanged, now: float) -> None:
        """The endpoints of a pool are these from now on."""
        pool = self.pools.get(event.pool)
        if pool is None:
            raise MisuseError(f"no pool {event.pool!r} is configured")
        for endpoint_id in event.endpoints:
            home = self._home.get(endpoint_id)
            if home is not None and home is not pool:
                raise MisuseError(f"endpoint {endpoint_id} belongs to pool {home.settings.name!r} already")
        for order, endpoint_id in enumerate(event.endpoints):
            known = pool.endpoints.get(endpoint_id)
            if known is None:
                self._home[endpoint_id] = pool
                pool.add_endpoint(endpoint_id, order)
            else:
                known.order = order
                if known.state is EndpointState.REMOVED:
                    known.state = EndpointState.STARTING
        for endpoint in pool.endpoints.values():
            if endpoint.id not in event.endpoints:
                endpoint.state = EndpointState.REMOVED
        for endpoint in list(pool.endpoints.values()):
            self.forget_if_removed(endpoint, pool)
        if pool.find_limits():
            self._repricing.begin(pool, now)
        self.check_absence(pool, now)
        self._fill(pool, now)

    def _endpoint_drained(self, event: EndpointDrained, now: float) -> None:
        """An operator took an endpoint out of use, or put it back."""
        pool, endpoint = self.of(event.endpoint)
        if pool is None or endpoint is None:
            raise MisuseError(f"no endpoint {event.endpoint} is configured")
        endpoint.drain(out=event.out)
        self._repricing.begin(pool, now)
        self.check_absence(pool, now)
        self._fill(pool, now)

    def _share_changed(self, event: ShareChanged, now: float) -> None:
        """This replica may use another share of a pool."""
        pool = self.pools.get(event.pool)
        if pool is None:
            raise MisuseError(f"no pool {event.pool!r} is configured")
        pool.set_share(min(max(event.share, 0.0), 1.0))
        self._repricing.begin(pool, now)
        self._fill(pool, now)

    def attempt_failed(self, endpoint: Endpoint, pool: Pool, failure: Failure, now: float) -> None:
        """A request was sent there, and it failed before its first token."""
        endpoint.count(failure.value)
        if failure is Failure.CONNECT:
            self.unreachable(endpoint, pool, now)
        else:
            speak_against(endpoint, pool, now, doubtful=failure is not Failure.REFUSED)

    def unreachable(self, endpoint: Endpoint, pool: Pool, now: float) -> None:
        """An endpoint could not be reached."""
        was_down = endpoint.state is EndpointState.DOWN
        endpoint.fail(now)
        if not was_down:
            pool.pricing.prefixes.homes.forget(endpoint.id)
        if not was_down and not endpoint.described and pool.find_limits():
            self._repricing.begin(pool, now)

    def check_absence(self, pool: Pool, now: float) -> None:
        """What is up may have changed. With nothing up waiters get a grace, once for each time that happens."""
        self._guard.look(pool, now)
        if pool.has_up():
            pool.absent_since_s = None
        elif pool.absent_since_s is None:
            pool.absent_since_s = now
            self._patience.absent(pool, now)

    def forget_if_removed(self, endpoint: Endpoint, pool: Pool) -> None:
        """Drop one that is not wanted any more once nothing of ours is left there."""
        if endpoint.state is EndpointState.REMOVED and not endpoint.running and not endpoint.draining:
            pool.remove_endpoint(endpoint)
            pool.pricing.prefixes.homes.drop(endpoint.id)
            self._home.pop(endpoint.id, None)
