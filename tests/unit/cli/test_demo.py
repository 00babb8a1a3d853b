from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES as CLASSES
from forebay.cli.demo import class_table, legend, summary_table, verdict
from forebay.load.felt import End, Felt, Report, summarise
from forebay.runtime.demo import ArmResult, DemoPlan, DemoResult

GOOD = Felt(
    *("realtime", 1.0, True, End.COMPLETED, 2.0),
    first_token_s=0.5,
    last_token_s=2.0,
    output_tokens=31,
    status=200,
)
LATE = replace(GOOD, first_token_s=1.9)
REFUSED = Felt("realtime", 1.0, True, End.REFUSED, 0.01, status=429, retry_after_s=2.0)


def report(*felt: Felt, preemptions: int = 0) -> Report:
    """What these requests amount to in ten seconds."""
    return summarise(felt, CLASSES, duration_s=10, preemptions=preemptions)


def result(
    direct: Report, forebay: Report, *, late_s: float = 0.0, seconds_s: float = 20, load: float = 2
) -> DemoResult:
    """A finished demo."""
    return DemoResult(
        DemoPlan(seconds_s=seconds_s, load=load), ArmResult(direct, late_s), ArmResult(forebay, late_s)
    )


def shown(what: object) -> str:
    """As it appears on a narrow terminal."""
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_the_tables_fit_a_narrow_terminal() -> None:
    """In 80 columns no figure is cut short."""
    slow = replace(GOOD, end=End.UNANSWERED, first_token_s=None, duration_s=123.46)
    nearly = replace(slow, duration_s=9.99)
    done = result(report(slow, slow), report(GOOD, REFUSED))

    assert "123.5 / 123.5 s" in shown(class_table(done))
    assert "9.99 / 9.99 s" in shown(class_table(result(report(nearly), report(nearly))))
    assert "…" not in shown(class_table(done))
    assert "thrown out of engine memory" in shown(summary_table(done))


def test_the_verdict_gives_the_gain_in_words() -> None:
    """A clear gain is stated as a factor and as shares of all requests."""
    said = verdict(result(report(GOOD, LATE, LATE, LATE), report(GOOD, GOOD, LATE, LATE)))

    assert (
        said == "With Forebay 2.0 times as many requests were on time: 50% of all with Forebay, 25% without."
    )


def test_the_verdict_does_not_divide_by_nothing() -> None:
    """If nothing was on time without Forebay, there is no factor to state."""
    assert "times" not in verdict(result(report(LATE), report(GOOD)))
    assert verdict(result(report(LATE), report(GOOD))).startswith("Only with Forebay")
    assert verdict(result(report(LATE), report(LATE))).startswith("No clear difference")


def test_the_verdict_says_when_it_was_of_no_use() -> None:
    """No difference and a worse result are stated as such."""
    assert verdict(result(report(GOOD), report(GOOD))).startswith("No clear difference")
    assert verdict(result(report(GOOD, GOOD), report(GOOD, LATE))).startswith("Forebay did worse")


def test_the_verdict_tells_refusals_without_advice_apart() -> None:
    """It says whether every refused request was told when to come back."""
    silent = replace(REFUSED, retry_after_s=None)

    assert "1 away, and it was told" in verdict(result(report(LATE), report(GOOD, REFUSED)))
    assert "1 away, and it was not told" in verdict(result(report(LATE), report(GOOD, silent)))
    assert "each was told" in verdict(result(report(LATE), report(GOOD, REFUSED, REFUSED)))
    assert "only 1 was told" in verdict(result(report(LATE), report(GOOD, REFUSED, silent)))
    assert "only 2 were told" in verdict(result(report(LATE), report(GOOD, REFUSED, REFUSED, silent)))


def test_the_verdict_doubts_a_run_on_a_busy_machine() -> None:
    """Engines that fell behind, or clients that sent late, make the figures doubtful."""
    late = replace(GOOD, late_s=0.5)

    assert "engines fell 3.0 s behind" in verdict(result(report(LATE), report(GOOD), late_s=3.0))
    assert "sent 0.5 s late" in verdict(result(report(LATE), report(late)))


def test_the_verdict_names_preemptions() -> None:
    """Work that the engines did twice is part of the story."""
    said = verdict(result(report(LATE, preemptions=40), report(GOOD)))

    assert "40 times" in said
    assert "behind Forebay 0 times" in said
    assert "memory once and" in verdict(result(report(LATE, preemptions=1), report(GOOD)))


def test_every_class_shows_what_was_still_open() -> None:
    """A request that is unanswered at the end is neither on time nor refused, and is seen in its class."""
    open_ = replace(GOOD, end=End.UNANSWERED, first_token_s=None, duration_s=9.0)
    lines = shown(class_table(result(report(GOOD, open_), report(GOOD, REFUSED)))).splitlines()
    headings = next(line for line in lines if "offered" in line)
    assert ["on", "time", "refused", "still", "open"] == headings.split()[2:7]
    assert any(line.split()[:6] == ["realtime", "2", "direct", "50%", "0", "1"] for line in lines)
    assert any(line.split()[:4] == ["Forebay", "50%", "1", "0"] for line in lines)


def test_the_legend_tells_what_on_time_is_and_how_classes_share() -> None:
    """It gives the objectives, and says why the least important class fares as it does."""
    late_batch = replace(GOOD, class_name="batch", end=End.UNANSWERED, first_token_s=None)
    said = legend(result(report(GOOD, late_batch), report(GOOD, late_batch)))

    assert "objective (realtime 1.5 s, batch 60 s)" in said
    assert "of batch as much is served as its share holds" in said
    assert "unanswered at the end" in said
    assert "share" not in legend(result(report(GOOD), report(GOOD)))


def test_a_run_that_was_too_short_is_not_judged() -> None:
    """No difference in a few seconds asks for a longer run; in a long one, for more load."""
    assert verdict(result(report(GOOD), report(GOOD), seconds_s=4)).endswith("try --seconds 40.")
    assert verdict(result(report(GOOD), report(LATE), seconds_s=4)).endswith("try --seconds 40.")
    assert verdict(result(report(GOOD), report(GOOD), seconds_s=40)).endswith("Try a higher --load.")


def test_the_title_reads_well_at_capacity() -> None:
    """A load of one is as much as the engines can serve, not 1 times that."""
    assert "as much as the engines can serve" in shown(
        class_table(result(report(GOOD), report(GOOD), load=1))
    )
    assert "1.5 times what" in shown(class_table(result(report(GOOD), report(GOOD), load=1.5)))
