"""How many prompt tokens the bytes of a prompt make, as learned: template + bytes × tokens per byte, for each model.

A chat template adds the same few tokens to each prompt, whatever its length. Told apart from the text, many small
prompts do not spoil what is known of large ones. Both are fitted by least squares over what was observed, each
observation weighing by its size, with a prior that does not fade:

    tokens of k prompts of x bytes together = k·template + x·slope        weight 1 ÷ (x + 200·k)

Models of one pool may have different vocabularies. Each has a fit of its own, which begins with what is known of all
of them; of those seen longest ago it is forgotten. Clients choose names, so what is not known by its own name goes by
the fit of all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forebay.admission.plain_data import entries_of, fields_of, name_of, number_of

PRIOR_BYTES_PER_TOKEN: Final = 4.0
"""English text with present vocabularies."""
PRIOR_TOKENS: Final = 500.0
"""Weight of that prior, in tokens: a few requests outweigh it."""
PRIOR_TEMPLATE: Final = 8.0
"""Tokens that a template adds before anything is known; worth a few prompts."""
PER_PROMPT_BYTES: Final = 200.0
"""What a prompt weighs besides its text: very short ones say nothing exact."""
RATIO_DECAY: Final = 0.999
"""Per prompt."""
TEMPLATE_TOKENS: Final = 1000
"""More is no template. Text makes at most one token per byte: a prompt with more than both
held something that is not text, and would teach that every text is hundreds of times its size."""
TRUSTED_AFTER: Final = 30
"""Prompts after which what was learned may decide against a client."""
MOST_TEMPLATE: Final = 100.0
"""More is not made out: where all prompts are of one size, nobody can tell the template from the text."""
SURELY_BYTES: Final = 8.0
"""Text is hardly ever cut into tokens of more bytes in the mean. So however odd the prompts of some clients are, what
they teach refuses nobody whose text would be small enough even so."""
LEAST_SLOPE: Final = 1.0 / SURELY_BYTES
MOST_SLOPE: Final = 1.0
MODELS: Final = 64
"""Names with a fit of their own."""

_PRIOR_TEMPLATE_WEIGHT: Final = 0.004


class PromptRatio:
    """Prompt tokens by bytes of prompt text."""

    __slots__ = (
        "_kk",
        "_kt",
        "_kx",
        "_prior_slope",
        "_slope",
        "_stale",
        "_template",
        "_xt",
        "_xx",
        "observations",
    )

    def __init__(self, prior_slope: float = 1.0 / PRIOR_BYTES_PER_TOKEN) -> None:
        self.observations = 0
        """Prompts seen."""
        self._kk = self._kx = self._xx = self._kt = self._xt = 0.0
        """Decayed Σ of weight × k·k, k·x, x·x, k·tokens, x·tokens."""
        self._prior_slope = prior_slope
        self._template = 0.0
        self._slope = prior_slope
        self._stale = True
        """Template and slope are those before the last observation: they are worked out when they are asked for."""

    @property
    def bytes_per_token(self) -> float:
        """The present estimate for text alone."""
        if self._stale:
            self._solve()
        return 1.0 / self._slope

    @property
    def template_tokens(self) -> float:
        """The present estimate of what a template adds."""
        if self._stale:
            self._solve()
        return self._template

    def observe(self, prompt_bytes: int, prompt_tokens: int, prompts: int = 1) -> None:
        """Learn from a request whose true token count is known, or from some whose sum is."""
        if prompt_bytes <= 0 or not 0 < prompt_tokens <= prompt_bytes + prompts * TEMPLATE_TOKENS:
            return
        size, tokens, count = float(prompt_bytes), float(prompt_tokens), float(prompts)
        weight = 1.0 / (size + PER_PROMPT_BYTES * count)
        decay: float = RATIO_DECAY if prompts == 1 else RATIO_DECAY**count
        self._kk = self._kk * decay + weight * count * count
        self._kx = self._kx * decay + weight * count * size
        self._xx = self._xx * decay + weight * size * size
        self._kt = self._kt * decay + weight * count * tokens
        self._xt = self._xt * decay + weight * size * tokens
        self.observations += prompts
        self._stale = True

    def estimate(self, prompt_bytes: int) -> int:
        """Expected prompt tokens, at least 1."""
        if self._stale:
            self._solve()
        return int(self._template + prompt_bytes * self._slope + 0.5) or 1

    def at_least(self, prompt_bytes: int) -> int:
        """A count that the prompt very likely exceeds: what a refusal for size may rest on."""
        likely = self.estimate(prompt_bytes) / (2 if self.observations >= TRUSTED_AFTER else 4)
        return max(int(min(likely, prompt_bytes / SURELY_BYTES)), 1)

    def _solve(self) -> None:
        """Template and slope that fit best, within bounds."""
        kk, kx = self._kk + _PRIOR_TEMPLATE_WEIGHT, self._kx
        kt = self._kt + _PRIOR_TEMPLATE_WEIGHT * PRIOR_TEMPLATE
        # As one prompt of so many tokens, without its template.
        xx, xt = self._xx + PRIOR_TOKENS / self._prior_slope, self._xt + PRIOR_TOKENS
        determinant = kk * xx - kx * kx  # above zero: the prior alone is
        template = (kt * xx - kx * xt) / determinant
        if template < 0.0 or template > MOST_TEMPLATE:
            template = 0.0 if template < 0.0 else MOST_TEMPLATE
        slope = (xt - kx * template) / xx
        if slope < LEAST_SLOPE or slope > MOST_SLOPE:
            slope = LEAST_SLOPE if slope < LEAST_SLOPE else MOST_SLOPE
            template = min(max((kt - kx * slope) / kk, 0.0), MOST_TEMPLATE)
        self._template, self._slope = template, slope
        self._stale = False

    def export(self) -> dict[str, object]:
        """What was learned, as plain data for JSON."""
        sums = [self._kk, self._kx, self._xx, self._kt, self._xt]
        return {"sums": sums, "prior": self._prior_slope, "observations": self.observations}

    def restore(self, state: object) -> None:
        """Take back what `export` gave. Raises: ValueError for anything else, and then nothing has changed."""
        fields = fields_of(state, "prompt ratio")
        sums = fields.get("sums")
        if not isinstance(sums, list) or len(sums) != 5:
            raise ValueError("prompt ratio: its sums are not five numbers")
        numbers = [number_of(value, "sums") for value in sums]
        kk, kx, xx, kt, xt = numbers
        if kx * kx > kk * xx * (1.0 + 1e-9):
            raise ValueError("prompt ratio: no prompts have such sums")
        prior = number_of(fields.get("prior"), "prior")
        observations = fields.get("observations")
        if not isinstance(observations, int) or isinstance(observations, bool) or observations < 0:
            raise ValueError(f"prompt ratio: observations is not a count: {observations!r:.80}")
        if not LEAST_SLOPE <= prior <= MOST_SLOPE:
            raise ValueError(f"prompt ratio: {prior} tokens a byte are not plausible")
        self._kk, self._kx, self._xx, self._kt, self._xt = kk, kx, xx, kt, xt
        self._prior_slope, self.observations = prior, observations
        self._stale = True


class PromptRatios:
    """The fits of one pool: of all its prompts, and of each model."""

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
            own = self._by_model[model] = PromptRatio(1.0 / self.common.bytes_per_token)
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
