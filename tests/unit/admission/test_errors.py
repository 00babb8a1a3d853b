from __future__ import annotations

import pytest

from forebay.admission.errors import ConfigRefused, CoreError, InvariantError, MisuseError, invariant


def test_invariant_raises_when_it_does_not_hold() -> None:
    """A broken invariant is an error that says why, under -O too."""
    with pytest.raises(InvariantError, match="books do not balance"):
        invariant(False, "books do not balance")


def test_invariant_is_silent_when_it_holds() -> None:
    """What holds costs nothing and says nothing."""
    invariant(True, "never read")


@pytest.mark.parametrize("error", [ConfigRefused, InvariantError, MisuseError])
def test_every_error_of_the_core_has_one_base(error: type[CoreError]) -> None:
    """A driver can catch all errors of the core, and only those, by one name."""
    assert issubclass(error, CoreError)
    assert not issubclass(CoreError, AssertionError)
