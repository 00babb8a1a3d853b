"""Settings that hold for every test: Hypothesis profiles, and which tests must not run side by side."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# One worker runs these one after another: they open sockets, start processes and watch the clock.
SERIAL_FOLDERS = ("integration", "e2e")

# A loaded machine must not fail a test, so examples have no time limit of their own; pytest's timeout bounds the test.
settings.register_profile("work", deadline=None, max_examples=60)
# The same examples on every run, so that a failure means a change. `fresh` looks for new ones.
settings.register_profile(
    "ci", parent=settings.get_profile("work"), derandomize=True, print_blob=True, database=None
)
settings.register_profile(
    "fresh",
    parent=settings.get_profile("work"),
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "work"))


# Set by `make test-compiled`: the folder of the compiled build, which must then be what is tested. Its name does not
# begin with `FOREBAY_`, which would make it a setting.
COMPILED = os.environ.get("TEST_COMPILED")
NATIVE = (
    "forebay.admission.controller",
    "forebay.gateway.relay",
    "forebay.http.connection",
    "forebay.http.exchange",
    "forebay.http.sse",
    "forebay.runtime.driver",
)


# A native class takes no stand-in for another one, and these tests hand over scripted exchanges and pools. What they
# test is tested on the compiled build by `integration/`, with real ones.
collect_ignore = (
    [
        "property/test_fuzz_upstream.py",
        "unit/gateway/test_attempt.py",
        "unit/gateway/test_counting.py",
        "unit/gateway/test_error_shapes.py",
        "unit/gateway/test_gateway.py",
        "unit/gateway/test_passing.py",
        "unit/gateway/test_relay.py",
        "unit/gateway/test_waiting.py",
        "unit/http/test_call.py",
        "unit/http/test_upstream_connection.py",
    ]
    if COMPILED
    else []
)


def pytest_configure() -> None:
    """Refuse to call a run of the interpreted sources a test of the compiled build."""
    if COMPILED is None:
        return
    for name in NATIVE:
        module = importlib.import_module(name)
        file = module.__file__ or ""
        if not (
            file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
            and Path(file).is_relative_to(COMPILED)
        ):
            raise pytest.UsageError(f"{name} is not the native one of {COMPILED} but {file}")


def pytest_report_header() -> str:
    """Say which build is tested."""
    return "forebay: interpreted" if COMPILED is None else f"forebay: compiled, in {COMPILED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that must not run side by side into one group, which one worker takes."""
    for item in items:
        try:
            folder = item.path.relative_to(TESTS).parts[0]
        except ValueError:
            continue
        if folder in SERIAL_FOLDERS or item.get_closest_marker("serial"):
            item.add_marker(pytest.mark.xdist_group("serial"))
