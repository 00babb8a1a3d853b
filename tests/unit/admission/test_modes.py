"""Which mode is in force where."""

from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import Mode, ModeChange
from forebay.admission.modes import Modes
from forebay.admission.settings import Settings
from tests.unit.admission.build import pool_settings, settings_for, with_class

ENFORCE, SHADOW, BYPASS = Mode.ENFORCE, Mode.SHADOW, Mode.BYPASS


def said(general: Mode = ENFORCE, *, pool: Mode | None = None, batch: Mode | None = None) -> Settings:
    """A configuration that says this."""
    return with_class("batch", replace(settings_for(pool_settings(mode=pool)), mode=general), mode=batch)


def test_what_a_pool_or_a_class_says_goes_before_the_general() -> None:
    """Each in both directions."""
    assert SHADOW is Modes(said(ENFORCE, pool=SHADOW)).of("llama", "standard")
    assert ENFORCE is Modes(said(SHADOW, pool=ENFORCE)).of("llama", "standard")
    of_class = Modes(said(SHADOW, batch=ENFORCE))
    assert (ENFORCE, SHADOW) == (of_class.of("llama", "batch"), of_class.of("llama", "standard"))


def test_of_pool_and_class_the_one_that_interferes_less_holds() -> None:
    """Whichever of the two it is."""
    assert SHADOW is Modes(said(pool=ENFORCE, batch=SHADOW)).of("llama", "batch")
    assert BYPASS is Modes(said(pool=BYPASS, batch=SHADOW)).of("llama", "batch")


def test_a_live_change_overrules_the_configuration_of_its_own_scope() -> None:
    """And one for a class of a pool overrules all."""
    modes = Modes(said(ENFORCE, pool=SHADOW))
    modes.change("", "", BYPASS)
    assert (BYPASS, SHADOW) == (modes.general, modes.of("llama", "standard"))
    modes.change("llama", "", ENFORCE)
    assert ENFORCE is modes.of("llama", "standard")
    modes.change("llama", "batch", SHADOW)
    assert (SHADOW, ENFORCE) == (modes.of("llama", "batch"), modes.of("llama", "standard"))
    assert [ModeChange("", "", BYPASS), ModeChange("llama", "", ENFORCE)] == list(modes.live()[:2])


def test_back_to_the_configuration_for_one_scope_or_for_all() -> None:
    """Without a scope everything that was switched live is taken back."""
    modes = Modes(said())
    modes.change("llama", "", SHADOW)
    modes.change("", "batch", BYPASS)
    modes.change("llama", "", None)
    assert (ENFORCE, BYPASS) == (modes.of("llama", "standard"), modes.of("llama", "batch"))
    modes.change("llama", "", None)  # what is not there is no error
    modes.change("", "", None)
    assert ((), ENFORCE) == (modes.live(), modes.of("llama", "batch"))


def test_a_live_change_lives_through_a_reload_that_does_not_speak_of_it() -> None:
    """And ends with one that says something else of its scope, or that has it no more."""
    modes = Modes(said())
    modes.change("", "", BYPASS)
    modes.change("llama", "", SHADOW)
    modes.change("llama", "batch", BYPASS)
    modes.reconfigure(said(batch=ENFORCE))
    assert 3 == len(modes.live())
    modes.reconfigure(said(SHADOW, batch=ENFORCE))
    assert (SHADOW, ["llama", "llama"]) == (modes.general, [change.pool for change in modes.live()])
    modes.reconfigure(said(SHADOW, pool=ENFORCE, batch=SHADOW))
    assert () == modes.live()
    assert (SHADOW, ENFORCE) == (modes.of("llama", "batch"), modes.of("llama", "standard"))


def test_a_pool_that_is_gone_takes_its_change_along() -> None:
    """One of the same name that comes later begins with what the configuration says."""
    modes = Modes(said())
    modes.change("llama", "", BYPASS)
    modes.reconfigure(settings_for(pool_settings(name="other")))
    modes.reconfigure(said())
    assert ENFORCE is modes.of("llama", "standard")
