"""Where the record of requests is kept, and how much of it. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from forebay.config.strict import Size, Strict

__all__ = ["RecordEntry"]


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("no file name has a NUL character")
    return path


class RecordEntry(Strict):
    """A file with a line for each request that ended: sizes and times, never content or keys."""

    path: Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]
    """The file; those before it are beside it, as `PATH.1` (the latest), `PATH.2`, …"""
    max_size: Annotated[Size, Field(ge=1 << 20, le=1 << 40)] = 64 * 1024 * 1024
    """When the file is as large, the next one is begun. A request takes about 700 bytes."""
    files: Annotated[int, Field(ge=1, le=1000)] = 4
    """How many are kept, with the one being written; the oldest is removed. None takes more of the disk than `files` ×
    `max_size`, and nothing is written while less than a twentieth of the disk is free (or less than 1 GiB, where a
    twentieth is more)."""
