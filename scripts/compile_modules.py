"""Compiles the modules on the path of a request with mypyc: used by the build hook of the package (`hatch_build.py`).

The sources stay the truth. What is made lies beside them in the wheel, as extension modules of the same names, which
Python prefers when it imports. `python -m scripts.compile_modules` only says
whether compiling is possible here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from scripts.expand_records import expand

HOT = (
    "admission/*.py",
    "gateway/*.py",
    "http/*.py",
    "observe/counts.py",
    "observe/decisions.py",
    "observe/endpoint_log.py",
    "observe/histograms.py",
    "observe/labels.py",
    "observe/request_log.py",
    "runtime/delivery.py",
    "runtime/driver.py",
)
INTERPRETED = re.compile(r"/__init__\.py$|/admission/record\.py$|/http/(?:fetching|server)\.py$")
"""Hardly on the path of a request, or not as mypyc would have it."""
STRUCT = re.compile(r"\bmsgspec\.Struct\b")
"""What msgspec reads by its annotations stays interpreted: native classes lose them, and fields silently go missing."""


class CannotCompile(Exception):
    """Why not, in words for whoever builds."""


def compiler_fault() -> str | None:
    """What is missing for compiling with this Python; None if nothing is."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, include, "-fsyntax-only", "-x", "c", "-"]
    try:
        made = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, check=False)
    except OSError as error:
        return f"no C compiler ({error})"
    return "the C compiler does not find Python.h" if made.returncode else None


def compile_modules(package: Path, work: Path) -> dict[Path, str]:
    """Compile the hot modules of the package.

    Args:
        package: the folder `forebay` with the sources, which is left as it is.
        work: an empty folder, for a copy of them and for what is made.

    Returns:
        Each extension module made, and its path inside a wheel.

    Raises:
        CannotCompile: no compiler, or mypyc found fault.
    """
    fault = compiler_fault()
    if fault is not None:
        raise CannotCompile(fault)
    copy = work / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    hot = sorted(
        path
        for pattern in HOT
        for path in copy.glob(pattern)
        if not INTERPRETED.search(path.as_posix()) and not STRUCT.search(path.read_text())
    )
    for path in hot:
        path.write_text(expand(path.read_text()))
    log = work / "build.log"
    # An empty configuration: the project's own asks mypy for more than a build should fail over.
    command = [
        sys.executable,
        "-m",
        "mypyc",
        "--config-file=",
        *(str(path.relative_to(work)) for path in hot),
    ]
    with log.open("wb") as output:
        made = subprocess.run(command, cwd=work, stdout=output, stderr=subprocess.STDOUT, check=False)
    if made.returncode:
        said = log.read_text(errors="replace").splitlines()
        faults = [line for line in said if "error" in line] or said
        raise CannotCompile("mypyc failed: " + "\n".join(faults[-20:]))
    # Beside the modules there is one for all, in the folder where mypyc ran.
    shutil.rmtree(work / "build")
    return {path: path.relative_to(work).as_posix() for path in work.rglob("*.so")}


if __name__ == "__main__":
    sys.exit(compiler_fault())
