from __future__ import annotations

import pytest

from forebay.engines import exposition
from forebay.engines.exposition import Page, PageReader, labels_of
from forebay.engines.selecting import Selector, counted_once, picked

PAGE = b'a{kind="x",rank="0"} 1\na{kind="y",rank="0"} 2\na{kind="y",rank="1"} 3\nb 4\nc{q="\\"} oops\n'


def test_a_selector_is_a_name_with_labels() -> None:
    """A name alone, and a name with labels in any spacing, are read."""
    assert Selector.parse("a:b_c") == Selector("a:b_c", "a:b_c")
    text = ' a { kind = "x" , rank="0"}'
    assert Selector.parse(text) == Selector(text, "a", (("kind", "x"), ("rank", "0")))
    assert Selector.parse(r'a{k="q\"\\{}"}').conditions == (("k", 'q"\\{}'),)
    assert Selector.parse("a{}").conditions == ()


@pytest.mark.parametrize(
    "text", ["", "1a", "a b", 'a{kind="x"', "a{kind=x}", 'a{="x"}', 'a{kind="x" rank="0"}', "{}"]
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    """Anything else is an error that shows what was written."""
    with pytest.raises(ValueError, match=r"metric|labels"):
        Selector.parse(text)


def test_series_are_picked_by_their_labels() -> None:
    """Each selector finds the series that have its labels, under its own text; broken ones are told."""
    selectors = [Selector.parse(text) for text in ('a{kind="y"}', 'a{kind="z"}', "a", "b", "c", 'c{q="1"}')]
    page = picked(PageReader(["a", "b", "c"]).read(PAGE), selectors)
    assert page.values('a{kind="y"}') == [2.0, 3.0]
    assert page.values('a{kind="z"}') == []
    assert (page.values("a"), page.values("b")) == ([1.0, 2.0, 3.0], [4.0])
    assert page.broken == ("c", 'c{q="1"}')


def test_copies_count_once_by_the_largest() -> None:
    """Series that differ only in labels of copies are one number."""
    page = counted_once(PageReader(["a", "b"]).read(PAGE), copies=frozenset({"rank"}))
    assert (page.values("a"), page.values("b")) == ([1.0, 3.0], [4.0])


def test_parts_are_left_out_where_there_is_a_total() -> None:
    """Where one series is the total of the others, it alone counts; without a total all do."""
    page = PageReader(["a", "b"]).read(PAGE)
    found = counted_once(page, copies=frozenset({"kind"}), is_total=lambda labels: labels["kind"] == "x")
    assert found.values("a") == [1.0]
    found = counted_once(page, copies=frozenset(), is_total=lambda labels: labels["kind"] == "none")
    assert found.values("a") == [1.0, 2.0, 3.0]


def test_labels_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many selectors look at them, and whoever else does afterwards."""
    looked_at: list[bytes] = []

    def counting(raw: bytes) -> dict[str, str]:
        looked_at.append(raw)
        return labels_of(raw)

    monkeypatch.setattr(exposition, "labels_of", counting)
    page = Page({"a": {b's="1"': 1.0, b's="2"': 2.0}})
    found = picked(page, [Selector.parse('a{s="1"}'), Selector.parse('a{s="2"}'), Selector.parse("a")])
    counted_once(found, copies=frozenset({"s"}))
    assert [b's="1"', b's="2"'] == looked_at
