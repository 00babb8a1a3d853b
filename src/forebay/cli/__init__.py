"""The command line: one module per command, parsing and printing only.

Each `forebay.cli.<name>` module holds one click command called `command`. `main` finds them by name and
imports a command's module only when that command runs.
"""

from __future__ import annotations
