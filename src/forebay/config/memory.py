"""The memory limit that this process lives under: its control group's, or the machine's.

Read with the configuration; it is what `limits.memory: auto` means. Never raises: where nothing can be read, a
cautious figure is used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["memory_limit_bytes"]

_FALLBACK_BYTES: Final = 1 << 30


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """The smallest of the limits of our control group, of the groups around it, and the machine's memory."""
    limits = [_machine_bytes()]
    for hierarchy, group in _groups(root):
        directory = hierarchy / group.lstrip("/")
        # A limit on any group around ours holds for us too. Inside a container the path from /proc may lie
        # outside what is mounted: then the mount's root is our group.
        for candidate in (directory, *directory.parents):
            if candidate.is_relative_to(hierarchy):
                limits += [limit for name in _FILES if (limit := _read_limit(candidate / name)) is not None]
    return min(limits)


_FILES: Final = ("memory.max", "memory.limit_in_bytes")
"""Of control groups version 2 and 1."""


def _groups(root: Path) -> list[tuple[Path, str]]:
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return [(mount, "")]
    groups = []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            groups.append((mount, path))
        elif "memory" in controllers.split(","):
            groups.append((mount / "memory", path))
    return groups


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def _machine_bytes() -> int:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _FALLBACK_BYTES
    return size if size > 0 else _FALLBACK_BYTES
