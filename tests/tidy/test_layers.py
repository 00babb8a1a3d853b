"""The import contracts catch what they are for. `make check` runs them on the project itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

PACKAGES = ("admission", "enginemodel", "sizing", "config", "gateway", "fleet", "cli", "client")


def lint(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the project's contracts over a small tree that holds these files."""
    for package in PACKAGES:
        (folder / "forebay" / package).mkdir(parents=True)
        (folder / "forebay" / package / "__init__.py").touch()
    (folder / "forebay" / "__init__.py").touch()
    for name, text in files.items():
        (folder / "forebay" / name).write_text(text, encoding="utf-8")
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
            "--no-logo",
            str(ROOT / "pyproject.toml"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_allowed_imports_pass(tmp_path: Path) -> None:
    """Imports down the layers, from the short list, and of redis where it belongs, pass."""
    result = lint(
        tmp_path,
        {
            "admission/model.py": "from collections.abc import Mapping\nimport heapq, math\n",
            "admission/ledger.py": "from forebay.admission.model import Mapping\n",
            "gateway/server.py": "import asyncio\nfrom forebay.admission import ledger\n",
            "fleet/redis.py": "import redis\n",
            "client/transports.py": "import httpx2\nfrom forebay.client import policy\n",
            "client/policy.py": "",
        },
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"admission/model.py": "import time\n"}, "forebay.admission.model -> time"),
        (
            {"enginemodel/law.py": "def f():\n    from random import Random\n"},
            "forebay.enginemodel.law -> random",
        ),
        ({"admission/__init__.py": "import asyncio\n"}, "forebay.admission -> asyncio"),
        ({"admission/model.py": "import msgspec\n"}, "forebay.admission.model -> msgspec"),
        ({"admission/model.py": "import forebay.config\n"}, "forebay.admission.model -> forebay.config"),
        (
            {"admission/model.py": "import forebay.enginemodel\n"},
            "forebay.admission.model -> forebay.enginemodel",
        ),
        ({"config/load.py": "from forebay import gateway\n"}, "forebay.config.load -> forebay.gateway"),
        ({"gateway/server.py": "import redis\n"}, "forebay.gateway.server -> redis"),
        ({"gateway/server.py": "from grpc import aio\n"}, "forebay.gateway.server -> grpc"),
        ({"gateway/server.py": "import httpx2\n"}, "forebay.gateway.server -> httpx2"),
        ({"cli/ask.py": "import forebay.client\n"}, "forebay.cli.ask -> forebay.client"),
        ({"client/policy.py": "import forebay.admission\n"}, "forebay.client.policy -> forebay.admission"),
    ],
)
def test_forbidden_import_is_caught(tmp_path: Path, files: dict[str, str], named: str) -> None:
    """An import against the layers or outside the short list breaks a contract, which names it."""
    result = lint(tmp_path, files)
    assert result.returncode == 1, result.stdout + result.stderr
    assert named in result.stdout


def test_unknown_package_needs_a_layer(tmp_path: Path) -> None:
    """A new package is refused until it has been given its place among the layers."""
    (tmp_path / "forebay" / "novelty").mkdir(parents=True)
    result = lint(tmp_path, {"novelty/__init__.py": ""})
    assert result.returncode == 1
    assert "novelty" in result.stdout
