"""The build hook: a wheel carries its hot modules compiled, where there is a C compiler, and is pure Python otherwise.

`FOREBAY_COMPILED` in the environment decides: 1 must, 0 must not, unset compiles if it can. An editable install and
a source distribution are never compiled.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

from scripts.compile_modules import CannotCompile, compile_modules


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before the wheel is put together."""
        wanted = os.environ.get("FOREBAY_COMPILED", "")
        if version == "editable" or wanted == "0":
            return
        self._work = tempfile.TemporaryDirectory(prefix="forebay-build-")
        self.app.display_waiting("forebay: compiling the hot modules, which takes about a minute")
        try:
            made = compile_modules(Path(self.root) / "src" / "forebay", Path(self._work.name))
        except CannotCompile as reason:
            if wanted == "1":
                self.app.abort(f"forebay: cannot be compiled: {reason}")
            self.app.display_warning(
                f"forebay: not compiled ({reason}). It runs as pure Python, at two to three times the CPU time a "
                "request; a C compiler and Python's headers (Debian: gcc, python3-dev) make it faster."
            )
            return
        build_data["force_include"].update({str(path): place for path, place in made.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Runs when the wheel is there."""
        work = getattr(self, "_work", None)
        if work is not None:
            work.cleanup()
