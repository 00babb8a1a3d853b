from __future__ import annotations

import math

import pytest

from forebay.engines import exposition
from forebay.engines.exposition import PAGE_BYTES, Page, PageReader, PageTooLarge, labels_of


def read(text: str, *names: str) -> Page:
    """The page of a text, asked for `a`, `b` and `c` unless told otherwise."""
    return PageReader(names or ("a", "b", "c")).read(text.encode())


def only(text: str, name: str = "a") -> list[float]:
    """The values of one name."""
    return read(text, name).values(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a 1", 1.0),
        ("a 1.5\n", 1.5),
        ("a{} 1", 1.0),
        ('a{x="y"} 2', 2.0),
        ('a {x="y"} 2', 2.0),
        ('a{x="y",} 2', 2.0),
        ('a{ x = "y" , z = "w" } 2', 2.0),
        ("  a\t 3  ", 3.0),
        ("a 4\r\n", 4.0),
        ("a 5 1796000000000", 5.0),
        ('a{x="y"} 6 1796000000000', 6.0),
        ('a{x="y"} 7 # {trace_id="q"} 0.5 1796000000.1', 7.0),
        ('a{x="y"} 8 1796000000 # {trace_id="q"} 0.5', 8.0),
        ("a -9e-3", -0.009),
        ("a 1.795988736e+09", 1795988736.0),
        ("a +Inf", math.inf),
        ("a -Inf", -math.inf),
    ],
)
def test_reads_a_line(text: str, value: float) -> None:
    """A sample is read in every form that the text format and OpenMetrics allow."""
    assert [value] == only(text)


def test_nan_is_handed_on() -> None:
    """NaN is a value of the format; whether it can be used is not the reader's business."""
    assert math.isnan(only("a NaN")[0])


@pytest.mark.parametrize(
    "value",
    ['y"}', 'say \\"hi\\"', "a,b", "a=b", "{}", "} 99", "back\\\\", '\\\\\\" } 5', "#", "line\\nfeed"],
)
def test_label_values_hold_anything(value: str) -> None:
    """Braces, commas, hashes and escaped quotes inside a label value do not end it."""
    value = value.replace('y"}', "y}")
    assert only(f'a{{x="{value}",y="z"}} 7') == [7.0]


def test_names_are_matched_whole() -> None:
    """A series whose name merely begins with, ends with or contains a name asked for is another one."""
    page = read('a_created 1\na_total 2\naa 3\nx:a 4\nA 5\na_bucket{le="1"} 6\na 7\n', "a")
    assert page.series == {"a": {b"": 7.0}}


def test_comments_are_not_samples() -> None:
    """HELP, TYPE, UNIT, EOF and free comments are passed over, also where they look like samples."""
    assert only("# a 1\n#a 1\n# HELP a b\n# TYPE a gauge\n# UNIT a seconds\na 2\n# EOF\n") == [2.0]


def test_series_are_kept_apart_by_labels() -> None:
    """Each set of labels is a series of its own, and a repeated one counts once."""
    page = read('a{r="0"} 1\na{r="1"} 2\na{r="0"} 3\n')
    assert page.series["a"] == {b'r="0"': 3.0, b'r="1"': 2.0}


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a{",
        'a{x="y"',
        'a{x="y} 1',
        "a x",
        "a 1_0",
        "a 0x10",
        "a{x=} }",
        'a{x="y"}',
        "a 1 2 3",
        'a{x="y"}{} 1',
    ],
)
def test_broken_line_spoils_only_itself(line: str) -> None:
    """A line that cannot be read is named, and its neighbours are used."""
    page = read(f"b 1\n{line}\nc 2\n")
    assert (page.series, page.broken) == ({"b": {b"": 1.0}, "c": {b"": 2.0}}, ("a",))
    assert "a" in page


def test_absent_is_not_zero() -> None:
    """A name that is not on the page has no values and is not in it."""
    page = read("b 1")
    assert page.values("a") == []
    assert "a" not in page


def test_empty_page_is_read() -> None:
    """A page without a line gives nothing."""
    assert read("").series == {}
    assert read("\n\n \n\r\n").series == {}


def test_large_page_is_refused() -> None:
    """A page above the size limit is refused before it is taken apart."""
    with pytest.raises(PageTooLarge, match="bytes"):
        PageReader(["a"]).read(b"a 1\n" * (PAGE_BYTES // 4 + 1))


def test_page_of_line_feeds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of more lines than any engine has is refused, however few bytes they are."""
    monkeypatch.setattr(exposition, "PAGE_LINES", 10)
    with pytest.raises(PageTooLarge, match="lines"):
        PageReader(["a"]).read(b"\n" * 11)


def test_page_of_one_series_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page on which a series that we read has more lines than there can be ranks is refused; others may have many."""
    monkeypatch.setattr(exposition, "WANTED_LINES", 10)
    page = b"".join(b'a{rank="%d"} 1\n' % rank for rank in range(11))
    with pytest.raises(PageTooLarge, match="series"):
        PageReader(["a"]).read(page)
    assert PageReader(["b"]).read(page).series == {}


def test_page_of_labels_is_refused() -> None:
    """Labels cost most of all: few lines with many of them are refused as well, unless nobody reads their series."""
    page = b"".join(b'a{i="%d"%b} 1\n' % (i, b',l=""' * 100) for i in range(1000))
    with pytest.raises(PageTooLarge, match="labels"):
        PageReader(["a"]).read(page)
    assert PageReader(["b"]).read(page).series == {}


def test_endless_label_is_rejected_in_one_pass() -> None:
    """An endless unfinished label neither crashes the reader nor makes it go over the text again and again."""
    page = PageReader(["a", "b"]).read(b"a{" + b'x="y\\"' * 40_000 + b"\nb 1")
    assert (page.series, page.broken) == ({"b": {b"": 1.0}}, ("a",))


def test_labels_are_unescaped() -> None:
    """Labels come out as they were meant."""
    assert labels_of('a="q\\"\\\\", b="l\\nf",c="é, }",'.encode()) == {"a": 'q"\\', "b": "l\nf", "c": "é, }"}


def test_broken_labels_are_left_out() -> None:
    """What cannot be read of the labels is left out, whatever bytes it is made of."""
    assert labels_of(b'a="1",b=2,c="3"') == {"a": "1"}
    assert labels_of(b'a="\xff"') == {"a": "�"}
    assert labels_of(b"") == {}
