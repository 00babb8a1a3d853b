"""Scenarios that are closed after the test: every ticket settled once, nothing left on the books."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.unit.admission.build import Scenario

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed: closing a failed scenario would only hide why it failed."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def begin(request: pytest.FixtureRequest) -> Generator[Callable[..., Scenario]]:
    """Makes scenarios, and closes them when the test has passed."""
    begun: list[Scenario] = []

    def make(*args: Any, **kwargs: Any) -> Scenario:
        scenario = Scenario(*args, **kwargs)
        begun.append(scenario)
        return scenario

    yield make
    if request.node.stash.get(_PASSED, False):
        for scenario in begun:
            scenario.close()
