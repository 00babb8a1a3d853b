"""The memory limit that a process lives under."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config.memory import memory_limit_bytes


def put(root: Path, name: str, text: str) -> None:
    """A file under a made-up root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    """Where nothing is limited, the machine's memory is the limit."""
    assert memory_limit_bytes(tmp_path) > 64 << 20


def test_limit_of_the_own_group_counts(tmp_path: Path) -> None:
    """The limit of the process's control group is below the machine's memory and wins."""
    put(tmp_path, "proc/self/cgroup", "0::/system.slice/forebay\n")
    put(tmp_path, "sys/fs/cgroup/system.slice/forebay/memory.max", "33554432\n")
    assert 32 << 20 == memory_limit_bytes(tmp_path)


def test_limit_of_a_surrounding_group_counts(tmp_path: Path) -> None:
    """A tighter limit further up holds for the process too; `max` is none."""
    put(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    put(tmp_path, "sys/fs/cgroup/pod/container/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.max", "16777216\n")
    assert 16 << 20 == memory_limit_bytes(tmp_path)


def test_inside_a_container_the_mounts_root_counts(tmp_path: Path) -> None:
    """Where the group's path is not mounted, the root of the mount is the group."""
    put(tmp_path, "proc/self/cgroup", "0::/../outside\n")
    put(tmp_path, "sys/fs/cgroup/memory.max", "8388608\n")
    assert 8 << 20 == memory_limit_bytes(tmp_path)


def test_control_groups_version_1(tmp_path: Path) -> None:
    """The older hierarchy has its own file name and folder."""
    put(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    put(tmp_path, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "67108864\n")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert 64 << 20 == memory_limit_bytes(tmp_path)


@pytest.mark.parametrize("text", ["", "rubbish", "-1", "0", "1e9"])
def test_unreadable_limits_are_no_limits(tmp_path: Path, text: str) -> None:
    """What is no number is passed over."""
    put(tmp_path, "proc/self/cgroup", "0::/\nnonsense\n")
    put(tmp_path, "sys/fs/cgroup/memory.max", text)
    assert memory_limit_bytes(tmp_path) > 64 << 20
