from __future__ import annotations

import subprocess
import sys

from forebay.admission.tenant_memory import TenantMemory

NOW = 1000.0


def known(memory: TenantMemory, tenant: str, count: int, now: float = NOW) -> int:
    """How many of a tenant's first keys are remembered."""
    return sum(memory.get(tenant, key, now) is not None for key in range(count))


def test_a_number_is_kept_for_its_time() -> None:
    """Until then it is there, from then on it is not; putting it in again starts the time anew."""
    memory = TenantMemory(10.0, 100)
    memory.put("a", "k", 7, NOW)
    assert [7, None] == [memory.get("a", "k", NOW + after) for after in (9.9, 10.0)]
    memory.put("a", "k", 8, NOW + 9.0)
    assert [8, None] == [memory.get("a", "k", NOW + after) for after in (18.9, 19.0)]
    assert 1 == len(memory)


def test_what_is_forgotten_is_gone() -> None:
    """One by one, or all at once; what was never there is no fault."""
    memory = TenantMemory(10.0, 100)
    for key in range(3):
        memory.put("a", key, key, NOW)
    memory.forget("a", 1)
    memory.forget("a", 9)
    memory.forget("b", 1)
    assert [0, None, 2] == [memory.get("a", key, NOW) for key in range(3)]
    memory.clear()
    assert (0, None) == (len(memory), memory.get("a", 0, NOW))
    memory.put("a", 1, 1, NOW)
    assert 1 == memory.get("a", 1, NOW)


def test_a_modest_tenant_keeps_what_it_has_through_a_flood() -> None:
    """One tenant puts in a hundred times the room, and loses only its own."""
    memory = TenantMemory(1e6, 100)
    for key in range(10):
        memory.put("modest", key, key, NOW)
    for key in range(10_000):
        memory.put("flood", key, key, NOW + key)
    assert 10 == known(memory, "modest", 10, NOW + 10_000)
    assert (100, 90) == (len(memory), known(memory, "flood", 10_000, NOW + 10_000))
    assert memory.get("flood", 9_999, NOW + 10_000) is not None


def test_each_of_some_tenants_keeps_its_part_of_the_room() -> None:
    """Of four tenants each keeps a quarter of the room whatever the other three do."""
    memory = TenantMemory(1e6, 100)
    for key in range(25):
        memory.put("modest", key, key, NOW)
    for key in range(1000):
        for flood in ("x", "y", "z"):
            memory.put(flood, key, key, NOW)
    assert 25 == known(memory, "modest", 25)
    assert [25, 25, 25] == [known(memory, flood, 1000) for flood in ("x", "y", "z")]


def test_its_oldest_goes_and_not_what_it_uses() -> None:
    """Of the tenant that holds most the one that was put in longest ago goes."""
    memory = TenantMemory(1e6, 3)
    for key in ("a", "b", "c"):
        memory.put("t", key, 1, NOW)
    memory.put("t", "a", 1, NOW + 1)
    memory.put("t", "d", 1, NOW + 2)
    assert [1, None, 1, 1] == [memory.get("t", key, NOW + 3) for key in ("a", "b", "c", "d")]


def test_with_more_names_than_room_the_least_recently_used_goes() -> None:
    """Whoever makes up names fills the room; a tenant that comes back in time is kept among them."""
    memory = TenantMemory(1e6, 50)
    for key in ("idle", "busy"):
        memory.put(key, "k", 1, NOW)
    for name in range(500):
        memory.put(f"made up {name}", "k", 1, NOW + name)
        if name % 20 == 0:
            memory.put("busy", "k", 1, NOW + name)
    assert (None, 1) == (memory.get("idle", "k", NOW + 500), memory.get("busy", "k", NOW + 500))
    assert 50 == len(memory) == len(memory._of_tenant)


def test_what_has_expired_goes_first_and_little_by_little() -> None:
    """Nobody loses what counts while there is something that does not; a call clears two at most."""
    memory = TenantMemory(10.0, 100)
    for key in range(100):
        memory.put("old", key, 1, NOW)
    for key in range(60):
        memory.put("new", key, 1, NOW + 10.0)
        assert 100 - (key + 1) == len(memory) if key < 50 else len(memory) <= 61
    assert 60 == known(memory, "new", 60, NOW + 10.0)


def test_tenants_that_hold_nothing_are_not_known() -> None:
    """Memory is bounded in the number of tenants that ever came."""
    memory = TenantMemory(10.0, 100)
    for name in range(1000):
        memory.put(f"{name}", "k", 1, NOW + name)
    assert len(memory) == len(memory._of_tenant) <= 11
    assert {1} == {*memory._by_count}
    for name in range(1000):
        memory.forget(f"{name}", "k")
    assert (0, {}, {}) == (len(memory), memory._of_tenant, memory._by_count)


def test_who_loses_does_not_depend_on_the_hash_seed() -> None:
    """The same history leaves the same behind in any process."""
    script = """
from forebay.admission.tenant_memory import TenantMemory
memory = TenantMemory(300.0, 40)
for n in range(3000):
    memory.put(f"t{n * n % 23}", f"k{n * 7 % 31}", n, float(n))
print(*memory._items)
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert 1 == len(seen)
