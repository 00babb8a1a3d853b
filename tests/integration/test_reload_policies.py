"""Whole policies that change under load: several pools, a group, rules, quotas, ceilings, fallbacks, classes and plans.

Each configuration says which refusals are its own. Nobody is told anything else, whatever is reloaded, however broken.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.fakes import FakeEngine, Served, answer_chat, chat
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    first_pool,
    metrics,
    total,
    until_at_rest,
    until_up,
)

CHAT = "/v1/chat/completions"
KEYS = {"acme": "sk-acme-7f3a9", "guest": "sk-guest-1b2c3"}
MODELS = {"p": "llama", "q": "qwen", "r": "ft-1"}
CLASSES = ("realtime", "standard", "batch")
RELOADS = 50


class Policy:
    """A configuration, and the codes with which it may refuse what this test sends."""

    def __init__(self, dice: random.Random, engines: dict[str, FakeEngine]) -> None:
        self.dice = dice
        self.may: set[str] = set()
        names = [name for name in engines if name == "p" or dice.random() < 0.8]
        if len(names) < len(engines):
            self.may.add("model_not_found")
        self.config: dict[str, Any] = {
            "pools": [self._pool(name, engines[name], names) for name in names],
            "classes": {
                name: {"ttft": "30s", **self._class()} for name in dice.sample(CLASSES, len(CLASSES))
            },
            "default_class": "standard",
            "displace": self._some("off", lower="displaced", same="displaced"),
            "class_order": dice.choice(["weighted", "strict"]),
            "retries": dice.choice(["prefer", "equal", "penalise"]),
            "mode": dice.choice(["enforce", "enforce", "enforce", "shadow", "bypass"]),
            "plans": {"free": self._plan(), "gold": {"weight": 3}},
            "tenants": self._tenants(),
            "rules": [self._rule(place, names) for place in range(dice.choice([0, 1, 3]))],
        }
        if dice.random() < 0.8:
            self.config["anonymous"] = {"plan": "free"}
        else:
            self.may.add("invalid_api_key")

    def _some(self, usual: str, **others: str) -> str:
        """The usual value, or one of these, with which comes a code."""
        value = self.dice.choice([usual, *others])
        if value != usual:
            self.may.add(others[value])
        return value

    def _maybe(self, entry: dict[str, Any], key: str, values: list[Any], *codes: str) -> None:
        if self.dice.random() < 0.35:
            entry[key] = self.dice.choice(values)
            self.may.update(codes)

    def _pool(self, name: str, fake: FakeEngine, names: list[str]) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "endpoints": [fake.endpoint], "poll_interval": "100ms"}
        entry["models"] = [MODELS[name]] if name != "r" else ["ft-*", "small"]
        self._maybe(entry, "max_queue", [0, 2], "queue_full")
        self._maybe(entry, "max_gpu_seconds", [1, 3], "queue_full", "request_too_large")
        self._maybe(entry, "max_output_tokens", [50], "request_too_large")
        self._maybe(entry, "max_inflight_requests", [1, 2])
        self._maybe(entry, "max_pool_requests", [1, 4])
        self._maybe(entry, "queue_policy", ["latency", "throughput"])
        self._maybe(entry, "mode", ["enforce", "shadow", "bypass"])
        self._maybe(entry, "group", ["gpus"])
        if "group" in entry:
            self._maybe(entry, "share", [0.1, 0.3])
        others = names[names.index(name) + 1 :]
        if others:
            self._maybe(entry, "fallback", others)
        return entry

    def _class(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"weight": self.dice.choice([1, 5])}
        self._maybe(entry, "max_queue", [0, 1], "queue_full")
        # A pool that is new may take longer to be looked at than this.
        self._maybe(entry, "wait_budget", ["50ms"], "deadline_unreachable", "queue_timeout", "no_endpoints")
        self._maybe(entry, "max_share", [0.3])
        self._maybe(entry, "admit_below_utilization", [0.6])
        self._maybe(entry, "order", ["fifo", "edf"])
        self._maybe(entry, "never_refuse", [True])
        return entry

    def _plan(self) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        self._maybe(entry, "requests_per_second", [5, 50], "rate_limit_exceeded")
        self._maybe(entry, "tokens_per_second", [200], "rate_limit_exceeded")
        self._maybe(entry, "max_inflight", [1, 3], "rate_limit_exceeded")
        self._maybe(entry, "models", [["llama"], ["ft-*", "llama"]], "model_not_allowed")
        self._maybe(entry, "classes", [["batch"], ["standard", "batch"]])
        self._maybe(entry, "require_max_tokens", [True], "invalid_request")
        return entry

    def _tenants(self) -> list[dict[str, Any]]:
        known = [name for name in KEYS if self.dice.random() < 0.9]
        if len(known) < len(KEYS):
            self.may.add("invalid_api_key")
        return [
            {
                "name": name,
                "plan": self.dice.choice(["free", "gold"]),
                "keys": [f"sha256:{hashlib.sha256(KEYS[name].encode()).hexdigest()}"],
            }
            for name in known
        ]

    def _rule(self, place: int, names: list[str]) -> dict[str, Any]:
        when = self.dice.choice(
            [
                "pool.queue_requests > 1",
                "request.max_tokens > 50",
                "class == 'batch' && tenant.plan == 'free'",
                "pool.utilization > 0.3 || request.stream",
            ]
        )
        kind = self.dice.choice(["refuse", "accept", "class", "pool"])
        then: dict[str, Any] = {kind: {"retry_after": "1s"}}
        if kind == "refuse":
            self.may.add("rule_refused")
        elif kind == "accept":
            then = {kind: True}
        else:
            then = {kind: self.dice.choice(CLASSES if kind == "class" else names)}
        return {"name": f"r{place}", "when": when, "then": then}

    def spoilt(self) -> str:
        """The same with something wrong."""
        text = yaml.safe_dump(self.config, sort_keys=False)
        plans = {**self.config["plans"], "free": {"clases": ["batch"]}}
        pools = self.config["pools"]
        return self.dice.choice(
            [
                text[: self.dice.randrange(1, len(text) // 2)] + "\n  ]: {",
                text + "rools: []\n",
                text.replace("weight: ", "weight: -"),
                yaml.safe_dump({**self.config, "plans": plans}),
                yaml.safe_dump({**self.config, "pools": [{**pools[0], "fallback": "nowhere"}, *pools[1:]]}),
                yaml.safe_dump({**self.config, "pools": [{**pools[0], "share": 2}, *pools[1:]]}),
                yaml.safe_dump(
                    {**self.config, "rules": [{"name": "x", "when": "clas == 'a'", "then": {"accept": True}}]}
                ),
                yaml.safe_dump(
                    {**self.config, "tenants": [{"name": "x", "plan": "none", "keys": ["sk-plain"]}]}
                ),
            ]
        )


class Load:
    """Clients of every tenant, class and model. An answer goes by one of the policies in force meanwhile."""

    def __init__(self, http: httpx.AsyncClient, gateway: ServeProcess, first: Policy) -> None:
        self.told: Counter[str] = Counter()
        self.odd: list[str] = []
        self.policies = [first]
        """In force since the start; the last one may be on its way."""
        self.in_force = 0
        self._over = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._ask(http, gateway, number)) for number in range(12)]

    async def _ask(self, http: httpx.AsyncClient, gateway: ServeProcess, number: int) -> None:
        dice = random.Random(number)
        while not self._over.is_set():
            headers = {"x-forebay-class": dice.choice(CLASSES)} if dice.random() < 0.8 else {}
            if dice.random() < 0.7:
                headers["authorization"] = f"Bearer {dice.choice(list(KEYS.values()))}"
            if dice.random() < 0.2:
                headers["x-forebay-session"] = f"s{number}"
            body = chat(stream=dice.random() < 0.5, model=dice.choice(list(MODELS.values())))
            body |= dice.choice([{}, {"max_tokens": 8}, {"max_tokens": 80}])
            since = self.in_force
            try:
                answer = await http.post(f"{gateway.url}{CHAT}", json=body, headers=headers)
            except httpx.HTTPError as error:
                self.odd.append(repr(error))
                continue
            self._judge(answer, self.policies[since:], stream=bool(body["stream"]))

    def _judge(self, answer: httpx.Response, policies: list[Policy], *, stream: bool) -> None:
        if answer.status_code == 200:
            self.told["served"] += 1
            if stream and "[DONE]" not in answer.text:
                self.odd.append(f"broken off: {answer.text}")
            return
        code = answer.json()["error"]["code"]
        self.told[code] += 1
        if not any(code in policy.may for policy in policies):
            self.odd.append(f"{answer.status_code}: {answer.text}")
        if answer.status_code == 429 and "retry-after" not in answer.headers:
            self.odd.append(f"when to come back? {answer.text}")

    async def end(self) -> None:
        """No more; each client takes its last answer."""
        self._over.set()
        await asyncio.gather(*self._tasks)


async def slowly(served: Served) -> None:
    """An answer that takes long enough for others to wait."""
    await asyncio.sleep(0.02)
    await answer_chat(served)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 5])
async def test_policies_that_change_under_load_refuse_only_what_they_say(tmp_path: Path, seed: int) -> None:
    """F088, with all that a policy has: what is refused is refused by a policy that was in force."""
    path, dice = tmp_path / "forebay.yaml", random.Random(seed)
    async with engine(slowly) as p, engine(slowly) as q, engine(slowly) as r, client() as http:
        engines = {"p": p, "q": q, "r": r}
        policy = Policy(dice, engines)
        path.write_text(yaml.safe_dump(policy.config, sort_keys=False))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            load = Load(http, gateway, policy)
            applied = 0
            for _ in range(RELOADS):
                policy = Policy(dice, engines)
                broken = dice.random() < 0.25
                if not broken:
                    load.policies.append(policy)
                text = policy.spoilt() if broken else yaml.safe_dump(policy.config, sort_keys=False)
                path.write_text(text)
                answer = await http.post(f"{gateway.admin_url}/api/reload")
                assert (400 if broken else 200) == answer.status_code, (text, answer.text)
                if not broken:
                    load.in_force = len(load.policies) - 1
                    applied += 1
                await asyncio.sleep(0.05)
            await load.end()
            assert [] == load.odd
            assert load.told["served"] > 100
            assert len(load.told) > 6, load.told
            series = await until_at_rest(http, gateway)
            assert applied == total(series, "forebay_config_reloads_total")

            async def only_what_is_configured() -> bool:
                pools = {
                    key.partition('pool="')[2].partition('"')[0]
                    for key in await metrics(http, gateway)
                    if key.startswith("forebay_endpoint_state")
                }
                return pools == {entry["name"] for entry in load.policies[-1].config["pools"]}

            await eventually(only_what_is_configured)
            assert await first_pool(http, gateway)
            gateway.signal()
            assert 0 == await gateway.exit_code()
            assert "Traceback" not in await gateway.log()
