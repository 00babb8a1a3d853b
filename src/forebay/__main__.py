"""`python -m forebay` is the `forebay` command."""

from __future__ import annotations

from forebay.cli.main import main

if __name__ == "__main__":
    main()
