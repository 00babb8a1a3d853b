"""From a model name to the pool that serves it, and the merged model list.

Built once from a `Serving` and thrown away with it; nothing here waits on an engine or changes while requests pass.
A name is refused only where engines themselves refuse unknown names; an engine that ignores the name gets the
request whatever it says.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from forebay.admission.outcomes import Outcome
from forebay.admission.patterns import fits
from forebay.gateway.ports import EndpointView, PoolView, Serving
from forebay.gateway.refusals import Answer, early_refusal, plain_error

__all__ = ["Routing", "Unroutable"]

_MEMO_SIZE: Final = 1_024
"""Names resolved through patterns that are remembered; clients choose the names, so there is a bound."""

_PLAIN_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~@:+-]+)+")
_JSON_TYPE: Final = (b"content-type", b"application/json")
_encode: Final = msgspec.json.Encoder().encode


class Unroutable(Exception):
    """No pool for this model; `answer` is what the client is told."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class Routing:
    """Lookups over one `Serving`."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self._by_name: dict[str, PoolView] = {}
        self._patterns: list[tuple[str, PoolView]] = []
        self._memo: dict[str, PoolView] = {}
        for pool in serving.pools:
            for model in pool.models:
                if "*" in model:
                    self._patterns.append((model, pool))
                else:
                    self._by_name.setdefault(model, pool)
        self._passed: dict[str, PoolView] = {}
        self._passed_prefixes: list[tuple[str, PoolView]] = []
        for pool in serving.pools:
            for path in pool.passthrough:
                if path.endswith("*"):
                    self._passed_prefixes.append((path[:-1], pool))
                else:
                    self._passed.setdefault(path, pool)
        self._model_list = _encode({"object": "list", "data": [self._entry(name) for name in self._by_name]})

    def pool_for(self, model: str | None) -> PoolView:
        """The pool that a request for `model` belongs to.

        Raises:
            Unroutable: No pool, or none can be chosen.
        """
        if model is not None:
            pool = self._by_name.get(model)
            if pool is not None:
                return pool
        pools = self.serving.pools
        if len(pools) == 1:
            only = pools[0]
            if model is None or not only.checks_model_names or not only.models or self._by_pattern(model):
                return only
            raise Unroutable(self._not_found())
        if model is None:
            message = f"'model' is missing. Name one of: {self._names()}."
            raise Unroutable(plain_error(400, "invalid_request", message, "model"))
        pool = self._by_pattern(model)
        if pool is None:
            # A pool that has not said yet what it serves may be the one; its engine answers if not.
            silent = [pool for pool in pools if not pool.models]
            if len(silent) != 1:
                raise Unroutable(self._not_found())
            pool = silent[0]
        return pool

    def only_pool(self) -> str:
        """The name of the pool that any request goes to; empty if that depends on the request."""
        pools = self.serving.pools
        return pools[0].name if len(pools) == 1 else ""

    def model_list(self) -> Answer:
        """The answer to GET /v1/models."""
        return Answer(200, [_JSON_TYPE], self._model_list)

    def model_entry(self, name: str) -> Answer:
        """The answer to GET /v1/models/NAME."""
        if name in self._by_name:
            return Answer(200, [_JSON_TYPE], _encode(self._entry(name)))
        if any(not pool.models for pool in self.serving.pools):
            message = "Not every engine has said yet which models it serves. Try again in 2 s."
            return early_refusal(503, Outcome.NO_ENDPOINTS, message, retry_after_s=2.0)
        return self._not_found()

    def passed_to(self, path: str) -> PoolView | None:
        """The pool whose operator has listed this path; None if none has. What may mean another path is not it."""
        pool = self._passed.get(path)
        if pool is None and self._passed_prefixes and _PLAIN_PATH.fullmatch(path) and ".." not in path:
            for prefix, of_pool in self._passed_prefixes:
                if path.startswith(prefix):
                    return of_pool
        return pool

    def endpoints(self) -> list[EndpointView]:
        """All endpoints, pool by pool."""
        return [endpoint for pool in self.serving.pools for endpoint in pool.endpoints]

    def _by_pattern(self, model: str) -> PoolView | None:
        known = self._memo.get(model)
        if known is not None:
            return known
        for pattern, pool in self._patterns:
            if fits(model, pattern):
                if len(self._memo) >= _MEMO_SIZE:
                    self._memo.clear()
                self._memo[model] = pool
                return pool
        return None

    def _entry(self, name: str) -> dict[str, object]:
        pool = self._by_name[name]
        entry: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": pool.engine}
        if pool.context_tokens is not None:
            entry["max_model_len"] = pool.context_tokens
        return entry

    def _names(self) -> str:
        names = list(self._by_name) + [pattern for pattern, _ in self._patterns]
        shown = ", ".join(names[:20])
        return shown + ", …" if len(names) > 20 else shown or "none is known yet"

    def _not_found(self) -> Answer:
        message = f"This model is not served here. Served: {self._names()}."
        return plain_error(404, "model_not_found", message, "model")
