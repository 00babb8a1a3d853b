"""How many prompt tokens the bytes of a prompt make, as learned: a decayed mean of bytes per token, for each model.

Models of one pool may have different vocabularies. Each has a ratio of its own, which begins with what is known of all
of them; of those seen longest ago it is forgotten. Clients choose names, so what is not known by its own name goes by
the ratio of all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forebay.admission.plain_data import entries_of, fields_of, name_of, number_of

PRIOR_BYTES_PER_TOKEN: Final = 4.0
"""English text with present vocabularies."""
PRIOR_TOKENS: Final = 500.0
"""Weight of that prior, in tokens: a few requests outweigh it."""
RATIO_DECAY: Final = 0.999
TEMPLATE_TOKENS: Final = 1000
"""Most tokens that a chat template adds by itself. Text makes at most one token per byte: a prompt with more than both
held something that is not text, and would teach that every text is hundreds of times its size."""
TRUSTED_AFTER: Final = 30
"""Prompts after which what was learned may decide against a client."""
_RATIO_FROM: Final = 1e-4
_RATIO_TO: Final = 1e6
"""Bytes per token beyond which a restored ratio is nonsense."""
MODELS: Final = 64
"""Names with a ratio of their own."""


class PromptRatio:
    """Bytes of prompt text per prompt token."""

    __slots__ = ("_bytes", "_tokens", "observations")

    def __init__(self) -> None:
        self._tokens = PRIOR_TOKENS
        self._bytes = PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN
        self.observations = 0

    @property
    def bytes_per_token(self) -> float:
        """The present estimate."""
        return self._bytes / self._tokens

    def observe(self, prompt_bytes: int, prompt_tokens: int, prompts: int = 1) -> None:
        """Learn from a request whose true token count is known, or from some whose sum is."""
        if prompt_bytes <= 0 or not 0 < prompt_tokens <= prompt_bytes + prompts * TEMPLATE_TOKENS:
            return
        self._bytes = self._bytes * RATIO_DECAY + prompt_bytes
        self._tokens = self._tokens * RATIO_DECAY + prompt_tokens
        self.observations += prompts

    def begin_as(self, other: PromptRatio) -> None:
        """Take another one's estimate for a prior."""
        self._bytes = self._tokens * other.bytes_per_token

    def estimate(self, prompt_bytes: int) -> int:
        """Expected prompt tokens, at least 1."""
        return int(prompt_bytes / (self._bytes / self._tokens) + 0.5) or 1

    def at_least(self, prompt_bytes: int) -> int:
        """A count that the prompt very likely exceeds: what a refusal for size may rest on."""
        return int(self.estimate(prompt_bytes) / (2 if self.observations >= TRUSTED_AFTER else 4))

    def export(self) -> dict[str, object]:
        """What was learned, as plain data for JSON."""
        return {"bytes": self._bytes, "tokens": self._tokens, "observations": self.observations}

    def restore(self, state: object) -> None:
        """Take back what `export` gave. Raises: ValueError for anything else, and then nothing has changed."""
        fields = fields_of(state, "prompt ratio")
        tokens = number_of(fields.get("tokens"), "tokens")
        prompt_bytes = number_of(fields.get("bytes"), "bytes")
        observations = fields.get("observations")
        if not isinstance(observations, int) or isinstance(observations, bool) or observations < 0:
            raise ValueError(f"prompt ratio: observations is not a count: {observations!r}")
        if not tokens or not _RATIO_FROM <= prompt_bytes / tokens <= _RATIO_TO:
            raise ValueError(f"prompt ratio: {prompt_bytes} bytes do not make {tokens} tokens")
        self._tokens, self._bytes, self.observations = tokens, prompt_bytes, observations


class PromptRatios:
    """The ratios of one pool: of all its prompts, and of each model."""

    __slots__ = ("_by_model", "common")

    def __init__(self) -> None:
        self.common = PromptRatio()
        self._by_model: OrderedDict[str, PromptRatio] = OrderedDict()
        """Seen longest ago first."""

    def of(self, model: str) -> PromptRatio:
        """What its prompts are counted by."""
        return self._by_model.get(model, self.common)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int, prompts: int = 1) -> None:
        """Learn from a request whose true token count is known, or from some of one model whose sum is."""
        own = self._by_model.get(model)
        if own is None:
            own = self._by_model[model] = PromptRatio()
            own.begin_as(self.common)
            if len(self._by_model) > MODELS:
                self._by_model.popitem(last=False)
        else:
            self._by_model.move_to_end(model)
        own.observe(prompt_bytes, prompt_tokens, prompts)
        self.common.observe(prompt_bytes, prompt_tokens, prompts)

    def export(self) -> dict[str, object]:
        """What was learned, as plain data for JSON."""
        models = [{"model": name, **ratio.export()} for name, ratio in self._by_model.items()]
        return {"all": self.common.export(), "models": models}

    def restore(self, state: object) -> None:
        """Take back what `export` gave. Raises: ValueError for anything else, and then nothing has changed."""
        fields = fields_of(state, "prompt ratios")
        made = PromptRatios()
        made.common.restore(fields.get("all"))
        for entry in entries_of(fields.get("models"), "models", MODELS):
            ratio = made._by_model[name_of(entry, "model")] = PromptRatio()
            ratio.restore(entry)
        self.common, self._by_model = made.common, made._by_model
