"""From the rows of a trace to the requests of a run: the standard scenario, and the load.

What traces do not say is added here, the same for every policy: which class a request is of, what its client states,
how long it has patience. The standard scenario applies where no configuration says otherwise: half of the rows are
realtime, three tenths standard and a fifth batch, drawn by a seeded hash of the row's number; a client states the next
power of two above the length of its answer as its limit, at least 256; interactive clients leave at four times their
TTFT objective. A class, a limit or a tenant that the trace names is kept. Prompts take 4 bytes a token, give or take a
tenth.

The load is reached by compressing time, never by leaving requests out or drawing them anew, so that bursts keep their
shape: arrivals come faster by one factor. Rows that no engine could ever serve are left out and counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forebay.admission.model import ANONYMOUS
from forebay.admission.patterns import fits_any
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, ClassSettings, Settings, SpeedLaw
from forebay.load.traces import TraceRow
from forebay.load.workload import client_limit_tokens, request_work_s
from forebay.simulate.place import EngineSetup
from forebay.simulate.request import BYTES_PER_TOKEN, Planned

STANDARD_SHARES: Final = (("realtime", 0.5), ("standard", 0.3), ("batch", 0.2))
PATIENCE: Final = 4.0
"""Times the TTFT objective."""
INTERACTIVE_S: Final = 30.0
"""A class is interactive if its first tokens are wanted sooner."""
UNSTREAMED_CLASS: Final = "batch"
"""Its answers are taken as a whole."""
_BATCH_TPOT_S: Final = 0.02
_BYTES_SPREAD: Final = 0.1


class CannotSimulate(ValueError):
    """The trace and what it is to run on do not fit; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a run, and what they come to."""

    requests: tuple[Planned, ...]
    load: float
    """Offered work over what the engines can do, by the closed form."""
    compression: float
    """By this factor they come faster than in the trace."""
    duration_s: float
    """From the first arrival to the last."""
    left_out: int
    """Rows that fit no engine."""

    @property
    def shares_prompts(self) -> bool:
        """Some prompts begin as others do."""
        return any(one.prefix for one in self.requests)


def standard_classes() -> tuple[ClassSettings, ...]:
    """The classes of the standard scenario: those of no configuration, with batch judged by its whole answers."""
    return tuple(
        replace(one, tpot_s=_BATCH_TPOT_S) if one.name == UNSTREAMED_CLASS else one
        for one in ZERO_CONFIGURATION_CLASSES
    )


def drawn(seed: int, what: str, number: int) -> float:
    """A number from 0 to 1 that depends on nothing but these: the same in every process, and for every policy."""
    digest = hashlib.blake2b(f"{seed}/{what}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def build(
    rows: Iterable[TraceRow],
    settings: Settings,
    fleet: Sequence[EngineSetup],
    *,
    seed: int,
    load: float | None = None,
    plans: Mapping[str, str] | None = None,
) -> Workload:
    """The requests that these rows come to.

    Args:
        rows: in order of time.
        settings: of the policy: its classes, pools and plans.
        fleet: the engines.
        seed: same seed, same requests.
        load: offered work over what the engines can do; None: they come as they came.
        plans: of tenants, by name; the empty name stands for all others.

    Raises:
        CannotSimulate: nothing is left to simulate.
    """
    maker = _Maker(settings, fleet, seed, plans or {})
    requests = [one for number, row in enumerate(rows) if (one := maker.request(number, row)) is not None]
    if not requests:
        raise CannotSimulate(
            "the trace has no request that fits the engines: "
            + (f"{maker.left_out} are too long" if maker.left_out else "it is empty")
        )
    first_s = requests[0].at_s
    duration_s = requests[-1].at_s - first_s
    rate = maker.work_parts / duration_s if duration_s > 0 else 0.0
    compression = 1.0
    if load is not None:
        if duration_s <= 0:
            raise CannotSimulate(
                "all requests come at once: there is no time to compress; leave out the load"
            )
        compression = load / rate
    return Workload(
        requests=tuple(replace(one, at_s=(one.at_s - first_s) / compression) for one in requests),
        load=rate * compression,
        compression=compression,
        duration_s=duration_s / compression,
        left_out=maker.left_out,
    )


class _Maker:
    """Turns rows into requests."""

    def __init__(
        self, settings: Settings, fleet: Sequence[EngineSetup], seed: int, plans: Mapping[str, str]
    ) -> None:
        self.left_out = 0
        self.work_parts = 0.0
        """Of every request its work over what its pool does in a second."""
        self._settings = settings
        self._classes = {one.name: one for one in settings.classes}
        self._standard = all(name in self._classes for name, _ in STANDARD_SHARES)
        self._seed = seed
        self._plans = plans
        self._prefixes: dict[tuple[str, str], int] = {}
        self._pools: dict[str, tuple[SpeedLaw, int, int]] = {}
        """By name: the law of one engine, how many there are, and the longest request that all of them take."""
        for one in fleet:
            law, engines, longest = self._pools.get(one.pool, (one.law(), 0, one.config.context_tokens))
            self._pools[one.pool] = law, engines + 1, min(longest, one.config.context_tokens)

    def request(self, number: int, row: TraceRow) -> Planned | None:
        pool = self._pool(row.model)
        law, engines, longest = self._pools[pool]
        output_tokens = max(row.output_tokens, 1)
        prompt_tokens = max(row.prompt_tokens, 1)
        if prompt_tokens + output_tokens > longest:
            self.left_out += 1
            return None
        self.work_parts += request_work_s(law, prompt_tokens, output_tokens) / engines
        limit_tokens = row.limit_tokens or client_limit_tokens(output_tokens)
        class_name = self._class_of(number, row)
        ttft_s = self._classes[class_name].ttft_s
        stream = row.stream and not (self._standard and class_name == UNSTREAMED_CLASS and not row.class_name)
        spread = 1.0 + _BYTES_SPREAD * (2.0 * drawn(self._seed, "bytes", number) - 1.0)
        prefix, shared_tokens = self._prefix_of(row, prompt_tokens, output_tokens)
        return Planned(
            index=number,
            at_s=row.at_s,
            class_name=class_name,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            limit_tokens=min(max(limit_tokens, output_tokens), longest - prompt_tokens),
            prompt_bytes=math.ceil(prompt_tokens * BYTES_PER_TOKEN * spread),
            stream=stream,
            pool=pool,
            tenant=row.tenant or ANONYMOUS,
            plan=self._plans.get(row.tenant, self._plans.get("", "")),
            model=row.model or "m",
            prefix=prefix,
            shared_tokens=shared_tokens,
            patience_s=PATIENCE * ttft_s if ttft_s < INTERACTIVE_S else None,
        )

    def _pool(self, model: str) -> str:
        pools = self._settings.pools
        return next(
            (pool.name for pool in pools if pool.models and fits_any(model, pool.models)), pools[0].name
        )

    def _class_of(self, number: int, row: TraceRow) -> str:
        if row.class_name in self._classes:
            return row.class_name
        if not self._standard:
            return self._settings.default_class
        left = drawn(self._seed, "class", number)
        for name, share in STANDARD_SHARES:
            left -= share
            if left < 0:
                return name
        return STANDARD_SHARES[-1][0]

    def _prefix_of(self, row: TraceRow, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
        """A conversation shares all of itself with its next turn; else a tenant's prompts what the trace says."""
        if row.session:
            key, shared = (row.tenant, row.session), prompt_tokens + output_tokens
        elif row.cached_tokens:
            key, shared = (row.tenant, ""), min(row.cached_tokens, prompt_tokens)
        else:
            return 0, 0
        return self._prefixes.setdefault(key, len(self._prefixes) + 1), shared
