"""Whether there is a record goes by the configuration, and what it tells comes from the core."""

from __future__ import annotations

from pathlib import Path

from forebay.admission.events import Ended, FirstTokenCame
from forebay.admission.model import TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.config.record_entry import RecordEntry
from forebay.load.record_line import RecordLine
from forebay.load.traces import read_records
from forebay.observe.recorder import RecordCounts
from forebay.runtime.recording import Recording
from tests.unit.runtime.doubles import Bench


def ids_of(ticket: TicketId) -> dict[str, str]:
    """Its number."""
    return {"id": str(ticket)}


def served(bench: Bench) -> TicketId:
    """A request that comes and is answered."""
    ticket, _ = bench.arrive()
    bench.driver.feed(FirstTokenCame(ticket))
    bench.driver.feed(Ended(ticket, Outcome.COMPLETED, Usage(90, 7, 32)))
    return ticket


def lines(path: Path) -> list[RecordLine]:
    """What is in the file."""
    return [line for _, line in read_records(path)]


async def test_the_core_tells_demand_estimate_and_usage(tmp_path: Path) -> None:
    """A request that was dispatched, one that waited, and one that was still open have what is known of them."""
    bench, path = Bench(), tmp_path / "r"
    recording = Recording(bench.driver, ids_of, RecordCounts())
    recording.follow(RecordEntry(path=str(path)))
    first, _ = bench.arrive()
    second, _ = bench.arrive()
    bench.driver.feed(FirstTokenCame(first))
    bench.driver.feed(Ended(first, Outcome.COMPLETED, Usage(90, 7, 32)))
    bench.driver.feed(FirstTokenCame(second))
    bench.driver.feed(Ended(second, Outcome.COMPLETED))
    await recording.stop()
    one, two = sorted(lines(path), key=lambda line: int(line.id))
    assert ("dispatch", 90, 7, 32) == (one.decision, one.prompt_tokens, one.output_tokens, one.cached_tokens)
    assert ("hold", "standard", None) == (two.decision, two.class_name, two.cached_tokens)
    assert one.prompt_expected
    assert one.output_expected
    assert one.cost_expected_gpu_s


async def test_it_follows_the_configuration(tmp_path: Path) -> None:
    """On, elsewhere, off: each request is where it was to be when it ended; off, nobody is told of anything."""
    bench = Bench()
    counts = RecordCounts()
    recording = Recording(bench.driver, ids_of, counts)
    delivery = bench.driver.delivery
    assert (0, 0) == (len(delivery._on_record), len(delivery._on_settlement))
    recording.follow(None)
    served(bench)
    recording.follow(RecordEntry(path=str(tmp_path / "1")))
    recording.follow(RecordEntry(path=str(tmp_path / "1")))
    first = served(bench)
    recorder = recording._recorder
    assert recorder is not None
    recording.follow(RecordEntry(path=str(tmp_path / "2"), files=1))
    recorder.join()
    second = served(bench)
    await recording.stop()
    served(bench)
    assert [[str(first)], [str(second)]] == [
        [line.id for line in lines(tmp_path / name)] for name in ("1", "2")
    ]
    assert (0, 0) == (len(delivery._on_record), len(delivery._on_settlement))
    assert (2, 0, 0) == (counts.written, counts.no_room, counts.not_written)
