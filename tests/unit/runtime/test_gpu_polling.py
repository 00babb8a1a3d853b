"""Reading exporters, with answers that a test writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from forebay.admission.events import Event, GpusSampled
from forebay.engines.reading import Answer, ReadFailed
from forebay.runtime import gpu_polling
from forebay.runtime.gpu_polling import GpuPolling, GpuSource

NODE, OTHER = ("n1", 9400), ("n2", 9400)


def page(*gpus: tuple[str, str]) -> bytes:
    """GPUs by pod, with what they say."""
    lines = ["# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).", 'DCGM_FI_DEV_FB_USED{gpu="0"} 5']
    lines += [
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}",pod="{pod}"}} {value}'
        for n, (pod, value) in enumerate(gpus)
    ]
    return ("\n".join(lines) + "\n").encode()


class Exporters:
    """Their pages, and the readers."""

    def __init__(self, *sources: GpuSource) -> None:
        self.now = 0.0
        self.pages: dict[tuple[str, int], bytes | Exception] = {}
        self.told: list[Event] = []
        self.open = 0
        self.polling = GpuPolling(self.told.append, self._client, lambda: self.now)
        self.polling.follow(sources)

    def _client(self, host: str, port: int) -> gpu_polling.Client:
        self.open += 1
        return _Client(self, (host, port))

    async def until(self, done: Callable[[], bool]) -> None:
        """Let the readers read, until this holds."""
        for _ in range(1000):
            if done():
                return
            await asyncio.sleep(0.005)
        raise TimeoutError

    def last(self, pool: str) -> float:
        """What was told last of a pool."""
        return [e.busy for e in self.told if isinstance(e, GpusSampled) and e.pool == pool][-1]


class _Client:
    def __init__(self, exporters: Exporters, exporter: tuple[str, int]) -> None:
        self._exporters, self._exporter = exporters, exporter

    async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
        assert ("/metrics", 3.0, 1 << 20) == (path, timeout_s, max_bytes)
        await asyncio.sleep(0)
        answer = self._exporters.pages.get(self._exporter, ReadFailed("refused", unreachable=True))
        if isinstance(answer, Exception):
            raise answer
        status = 200 if answer else 500
        return Answer(status, answer, at_s=self._exporters.now)

    def close(self) -> None:
        self._exporters.open -= 1


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not wait a second."""
    monkeypatch.setattr(gpu_polling, "INTERVAL_S", 0.01)
    monkeypatch.setattr(gpu_polling, "LONGEST_INTERVAL_S", 0.02)


async def test_a_pool_is_as_busy_as_the_mean_of_its_gpus() -> None:
    """Over all its exporters; labels leave out those of others."""
    both = Exporters(
        GpuSource("all", (NODE, OTHER)),
        GpuSource("llama", (NODE,), (("pod", "llama-*"),)),
        GpuSource("b", (OTHER,)),
    )
    both.pages = {
        NODE: page(("llama-0", "90"), ("llama-1", "70"), ("batch-0", "20")),
        OTHER: page(("b", "40")),
    }
    both.polling.start()
    await both.until(lambda: len(both.told) > 8)
    assert (0.55, 0.8, 0.4) == (both.last("all"), both.last("llama"), both.last("b"))
    assert 2 == both.open
    await both.polling.stop()
    assert 0 == both.open


async def test_what_cannot_be_meant_is_left_out() -> None:
    """Blank and impossible values, broken lines."""
    one = Exporters(GpuSource("p", (NODE,)))
    one.pages[NODE] = (
        page(("a", "NaN"), ("b", "-1"), ("c", "101"), ("d", "x"), ("e", "30")) + b"DCGM_FI_DEV_GPU_UTIL{ 7\n"
    )
    one.polling.start()
    await one.until(lambda: bool(one.told))
    assert 0.3 == one.last("p")
    await one.polling.stop()


async def test_one_that_does_not_answer_is_told_once_and_counts_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others go on; nothing is told where none is left, and it is told when it is back."""
    caplog.set_level(logging.INFO)
    one = Exporters(GpuSource("p", (NODE, OTHER)))
    one.pages = {NODE: page(("a", "100")), OTHER: page(("b", "0"))}
    one.polling.start()
    await one.until(lambda: bool(one.told) and one.last("p") == 0.5)
    one.pages[NODE] = ReadFailed("connect: refused", unreachable=True)
    one.now = 6.0
    await one.until(lambda: one.last("p") == 0.0)
    one.pages[OTHER] = b""
    await one.until(lambda: caplog.text.count("cannot be read") == 2)
    seen = len(one.told)
    await asyncio.sleep(0.1)
    assert seen == len(one.told)
    assert 2 == caplog.text.count("cannot be read")
    assert "GPU metrics of http://n1:9400/metrics cannot be read: connect: refused" in caplog.text
    one.pages[NODE] = page(("a", "100"))
    one.now = 12.0
    await one.until(lambda: one.last("p") == 1.0)
    assert "GPU metrics of http://n1:9400/metrics are read again" in caplog.text
    await one.polling.stop()


async def test_a_pool_without_gpus_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Labels may be wrong, or the GPUs be cut in slices."""
    one = Exporters(GpuSource("p", (NODE,), (("pod", "llama"),)))
    one.pages[NODE] = page(("lama", "5"))
    one.polling.start()
    await one.until(lambda: "pool p: no DCGM_FI_DEV_GPU_UTIL with its labels" in caplog.text)
    await asyncio.sleep(0.05)
    assert 1 == caplog.text.count("with its labels")
    assert [] == one.told
    one.pages[NODE] = b"x" * (1 << 22) + b"x"
    await one.until(lambda: "cannot be read: the metrics page has" in caplog.text)
    await one.polling.stop()


async def test_a_reload_reads_what_is_wanted_now() -> None:
    """Those that stay are not disturbed, the others are let go."""
    one = Exporters(GpuSource("p", (NODE,)))
    one.pages = {NODE: page(("a", "10")), OTHER: page(("b", "20"))}
    one.polling.start()
    await one.until(lambda: bool(one.told))
    one.polling.follow([GpuSource("q", (NODE, OTHER))])
    await one.until(
        lambda: 2 == one.open and any(isinstance(e, GpusSampled) and e.pool == "q" for e in one.told)
    )
    one.polling.follow([])
    await one.until(lambda: 0 == one.open)
    await one.polling.stop()
