"""The shape of a rule as an operator writes it.

For: `config.schema`. Owns no names but the keys: which classes and pools there are, and whether a condition can be
understood, is for `rule_checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from forebay.config.strict import Duration, Strict, plain_name

__all__ = ["RefuseAction", "RuleAction", "RuleEntry"]


class RefuseAction(Strict):
    """How a rule refuses."""

    retry_after: Annotated[Duration, Field(gt=0, le=60)] | None = None
    """What the client is told, up to 30 % more so that not all come back at once. Unset: as after any other refusal
    for contended capacity."""
    priority: Literal["all", "low"] = "all"
    """`low` leaves requests of the most important class alone."""


class RuleAction(Strict):
    """What is done with a request that matches: `refuse` alone, `accept` alone, or any of the others together."""

    refuse: RefuseAction | None = None
    """Answer `rule_refused`."""
    accept: bool = False
    """Let it in whatever its predicted wait and the bounds of its class; and no later rule refuses it."""
    class_: Annotated[str | None, Field(alias="class")] = None
    """Give it this class."""
    pool: str | None = None
    """Send it to this pool, with a model that the pool serves."""
    model: str | None = None
    """Ask for this model; without `pool`, at the pool whose `models` name it."""

    @model_validator(mode="before")
    @classmethod
    def _bare_refuse(cls, value: Any) -> Any:
        """`refuse:` with nothing after it means its defaults."""
        if isinstance(value, dict) and "refuse" in value and value["refuse"] in (None, True):
            return {**value, "refuse": {}}
        return value

    @model_validator(mode="after")
    def _does_one_thing(self) -> RuleAction:
        routes = self.class_ is not None or self.pool is not None or self.model is not None
        if (self.refuse is not None) + self.accept + routes != 1:
            raise ValueError(
                "expected one of refuse, accept, or any of class, pool and model, as in "
                "`then: {refuse: {retry_after: 2s}}` or `then: {class: batch}`"
            )
        return self


class RuleEntry(Strict):
    """A condition, and what is done with requests for which it holds."""

    name: str
    """In decisions, metrics and the reason that a refused client is told."""
    when: str
    """A condition in CEL, as in `running_seq_count > 32 || gpu_cache_usage_perc > 0.9`."""
    then: RuleAction
    """What is done with a request for which it holds."""
    on_error: Literal["skip", "match"] = "skip"
    """Where the condition cannot be evaluated: as if it did not hold, or (for rules that refuse) as if it did."""

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, value: str) -> str:
        return plain_name(value)

    @model_validator(mode="after")
    def _only_refusals_match_on_errors(self) -> RuleEntry:
        if self.on_error == "match" and self.then.refuse is None:
            raise ValueError("on_error: match is for rules that refuse; remove it")
        return self
