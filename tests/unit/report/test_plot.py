"""A picture, where matplotlib is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.report.plot import PlotFailed, draw
from tests.unit.report.workloads import record, surveyed


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_a_picture_is_drawn(tmp_path: Path, name: str, start: bytes) -> None:
    """Of a record and of a trace, in the kind that the name says."""
    for seen in (surveyed(record(tmp_path / "r", 50)), surveyed("synthetic:mixed", limit=500)):
        draw(seen, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_names_of_clients_are_no_markup(tmp_path: Path) -> None:
    """Whatever a tenant is called, it is a label."""
    names = ["$\\frac{$", "é", "\u65e5", "$$$", "", "x" * 200, "x" * 201, "\\$"]
    seen = surveyed(record(tmp_path / "r", 50, lambda number: {"tenant": names[number % 8]}))
    draw(seen, tmp_path / "p.svg")
    assert (tmp_path / "p.svg").exists()


def test_pictures_that_cannot_be(tmp_path: Path) -> None:
    """A kind that there is not, and a place that there is not."""
    seen = surveyed("synthetic:chat", limit=10)
    with pytest.raises(PlotFailed, match=r"must end with one of .*\.png"):
        draw(seen, tmp_path / "p.doc")
    with pytest.raises(PlotFailed, match="cannot be written: No such file"):
        draw(seen, tmp_path / "no" / "p.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed it is told how."""
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotFailed, match=r"pip install 'forebay\[plot\]'"):
        draw(surveyed("synthetic:chat", limit=10), tmp_path / "p.png")
