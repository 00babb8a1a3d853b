"""What is built for others to install."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, SRC


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel from the working tree."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        env={key: value for key, value in os.environ.items() if key != "FOREBAY_COMPILED"} | environment,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as it is built without compiling; `make test-compiled` builds and tests the other."""
    folder = tmp_path_factory.mktemp("wheel")
    made = build(folder, FOREBAY_COMPILED="0")
    assert made.returncode == 0, made.stderr
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


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    """Where nothing can be compiled the build says so and gives a wheel for every machine."""
    made = build(tmp_path, CC="false")
    assert made.returncode == 0, made.stderr
    assert "not compiled (the C compiler does not find Python.h)" in made.stdout + made.stderr
    (path,) = tmp_path.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")


def test_a_build_that_must_be_compiled_fails_without_a_compiler(tmp_path: Path) -> None:
    """Who asks for native code and cannot have it is told why, and gets no slow wheel instead."""
    made = build(tmp_path, CC="no-such-compiler", FOREBAY_COMPILED="1")
    assert made.returncode != 0
    assert "cannot be compiled: no C compiler" in made.stdout + made.stderr
    assert not list(tmp_path.glob("*.whl"))
