from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path

import pytest

from forebay.load.synthetic import WORKLOADS, read_source, synthetic, write_trace
from forebay.load.traces import TraceError, TraceRow, read_trace


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_rows(name: str) -> None:
    """Rows depend on name and seed, and a longer time only adds some."""
    rows = list(synthetic(name, seed=3, seconds=100))
    assert rows == list(synthetic(name, seed=3, seconds=100))
    assert rows == list(synthetic(name, seed=3, seconds=200))[: len(rows)]
    assert rows != list(synthetic(name, seed=4, seconds=100))


@pytest.mark.parametrize("name", WORKLOADS)
def test_rows_are_in_order_and_sensible(name: str) -> None:
    """Times grow and end in time; every length lies where its law says; shares and rate are near what is asked."""
    rows = list(synthetic(name, seconds=3000, rate_rps=2.0))
    times = [row.at_s for row in rows]
    assert times == sorted(times)
    assert 0 < times[-1] < 3000
    workload = WORKLOADS[name]
    for row in rows:
        assert any(
            part.class_name == row.class_name
            and part.stream is row.stream
            and part.prompt.low_tokens
            <= row.prompt_tokens - (row.cached_tokens or 0)
            <= part.prompt.high_tokens
            and part.output.low_tokens <= row.output_tokens <= part.output.high_tokens
            for part in workload.mix
        )
        assert (row.limit_tokens or 0) >= row.output_tokens
    more = 1 + 0.1 * workload.flood + 0.25 * (workload.surge_factor - 1)
    assert 2.0 * more == pytest.approx(len(rows) / 3000, rel=0.15)


def test_tenants_are_unequal_and_one_floods() -> None:
    """The first has the most; one of the smaller ones sends half of all while it floods."""
    rows = list(synthetic("mixed", seconds=600))
    shares = Counter(row.tenant for row in rows if row.at_s >= 60)
    assert "tenant-1" == shares.most_common(1)[0][0]
    assert shares["tenant-1"] > 6 * shares["tenant-12"]
    flood = Counter(row.tenant for row in rows if row.at_s < 60)
    assert 0.4 < flood["tenant-7"] / flood.total() < 0.7


def test_bursts_show_in_the_gaps() -> None:
    """Documents come in violent bursts: gaps vary clearly more than those of a Poisson process."""
    times = [row.at_s for row in synthetic("documents", seconds=3000)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.pstdev(gaps) / statistics.mean(gaps) > 1.3


def test_conversations_grow() -> None:
    """A request that goes on with a conversation brings all of it, of the same tenant, and later."""
    last: dict[str, TraceRow] = {}
    continued = 0
    for row in synthetic("chat", seconds=600):
        before = last.get(row.session)
        if before is not None:
            continued += 1
            assert before.prompt_tokens + before.output_tokens == row.cached_tokens
            assert before.tenant == row.tenant
            assert row.at_s > before.at_s + 8
        else:
            assert 0 == row.cached_tokens
        last[row.session] = row
    assert continued > 1000


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_written_can_be_read(name: str, tmp_path: Path) -> None:
    """A file of the common form holds every row."""
    rows = list(synthetic(name, seconds=60))
    file = tmp_path / "trace.csv"
    with file.open("w") as opened:
        assert len(rows) == write_trace(rows, opened)
    back = list(read_trace(file))
    assert [pytest.approx(row.at_s - rows[0].at_s, abs=2e-4) for row in rows] == [row.at_s for row in back]
    untimed = [
        (row.prompt_tokens, row.output_tokens, row.tenant, row.session, row.cached_tokens) for row in rows
    ]
    assert untimed == [
        (row.prompt_tokens, row.output_tokens, row.tenant, row.session, row.cached_tokens) for row in back
    ]
    assert [(row.class_name, row.limit_tokens, row.stream) for row in rows] == [
        (row.class_name, row.limit_tokens, row.stream) for row in back
    ]


def test_sources(tmp_path: Path) -> None:
    """A workload is written as `synthetic:NAME` with settings; anything else is a file."""
    assert list(synthetic("chat")) == list(read_source("synthetic:chat"))
    assert list(synthetic("chat", 2, 30, 9)) == list(read_source("synthetic:chat,seconds=30,seed=2,rate=9"))
    assert 5 == len(list(read_source("synthetic:chat", limit=5)))
    file = tmp_path / "trace.csv"
    with file.open("w") as opened:
        write_trace(synthetic("documents"), opened)
    assert 7 == len(list(read_source(file, limit=7)))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("synthetic:nothing", "there is no workload 'nothing'; there are chat, documents, reasoning, mixed"),
        ("synthetic:chat,speed=2", "found 'speed=2', allowed are seconds=, seed= and rate="),
        ("synthetic:chat,seconds=long", "found 'seconds=long'"),
        ("synthetic:chat,seconds=0", "seconds above 0"),
        ("synthetic:chat,seconds=nan", "seconds above 0"),
        ("synthetic:chat,rate=-1", "rate above 0"),
        ("synthetic:chat,seed=1.5", "seed: found 1.5"),
        ("synthetic:chat,seed=nan", "seed: found nan"),
    ],
)
def test_wrong_sources(source: str, said: str) -> None:
    """What is wrong with a source is said before anything is read."""
    with pytest.raises(TraceError, match=said):
        read_source(source)
