"""Groups of pools whose shares cannot be kept, or share nothing."""

from __future__ import annotations

from pathlib import Path

from forebay.config.errors import ConfigError
from forebay.config.loading import load


def told(tmp_path: Path, *pools: str) -> tuple[list[str], list[str]]:
    """Problems, else warnings, of pools of these keys, named a, b and so on."""
    path = tmp_path / "forebay.yaml"
    lines = [
        f'  - {{name: {name}, endpoints: ["http://127.0.0.1:{port}"], models: [{name}], {keys}}}'
        for port, (name, keys) in enumerate(zip("abcde", pools, strict=False), start=1)
    ]
    path.write_text("\n".join(["pools:", *lines, ""]))
    try:
        return [], [warning.split(": ", 1)[1] for warning in load(path, environ={}).warnings]
    except ConfigError as error:
        return [str(problem).split(": ", 1)[1] for problem in error.problems], []


def test_shares_of_two_groups_do_not_add_up(tmp_path: Path) -> None:
    """Each group has GPUs of its own, and shares that are all of them are not too much."""
    pools = (
        "group: x, share: 0.7",
        "group: x, share: 0.2",
        "group: x, share: 0.1",
        "group: y, share: 1",
        "group: y",
    )
    problems, warnings = told(tmp_path, *pools)
    assert [] == problems
    assert [
        "pools[4].group: pool 'e' has no part of group 'y': it starts next to nothing while others wait"
    ] == (warnings)


def test_more_than_there_is_is_an_error(tmp_path: Path) -> None:
    """It is told at the first share that is too much."""
    problems, _ = told(tmp_path, "group: x, share: 0.7", "group: x, share: 0.4", "group: x, share: 0.4")
    assert [
        "pools[1].share: with it the shares of group 'x' are 1.1; together they are 1 at most"
    ] == problems


def test_a_share_needs_a_group(tmp_path: Path) -> None:
    """A setting without effect would be believed in; so would a share of more than everything."""
    problems, _ = told(tmp_path, "share: 0.7")
    assert ["pools[0].share: of which GPUs? Set `group`, as in every pool that shares them"] == problems
    problems, _ = told(tmp_path, "group: x, share: 1.5", "group: x")
    assert 1 == len(problems)
    assert problems[0].startswith("pools[0].share")
    problems, _ = told(tmp_path, "group: ''", "group: ''")
    assert 2 == len(problems)


def test_a_group_of_one_pool_is_doubted(tmp_path: Path) -> None:
    """A name that was misspelt looks like that."""
    problems, warnings = told(tmp_path, "group: gpus", "group: gpu, share: 0.5", "group: gpus")
    assert [] == problems
    assert [
        "pools[1].group: no other pool is in group 'gpu', so nothing is shared; name it in all pools on these GPUs"
    ] == warnings
