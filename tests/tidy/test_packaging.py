"""What is built for others to install."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, SRC


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=50,
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_source_and_data_file(wheel: zipfile.ZipFile) -> None:
    """Modules, `py.typed` and data files such as the engine profiles are in the wheel, and nothing else is."""
    sources = {
        path.relative_to(SRC.parent).as_posix()
        for path in SRC.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert sources == packed
    assert "forebay/py.typed" in packed


def test_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    """Licence and notice travel with the wheel."""
    names = {Path(name).name for name in wheel.namelist() if "/licenses/" in name}
    assert names == {"LICENSE", "NOTICE"}


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    """Installing the wheel gives the `forebay` command."""
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "forebay = forebay.cli.main:main" in wheel.read(name).decode()
