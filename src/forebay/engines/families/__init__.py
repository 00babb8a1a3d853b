"""One module per engine family, each with a `FAMILY`. `registry` finds them all: adding a file is enough."""

from __future__ import annotations
