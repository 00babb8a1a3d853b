"""What a request of one pool is expected to take, and what has been learned for that.

Owns the pool's law of speed, its bytes per token, its answer lengths and its prefix cache's habits. It knows no queue,
no endpoint and no time; `cost` has the formula.
"""

from __future__ import annotations

from typing import Final

from forebay.admission import cost
from forebay.admission.counted_prompts import CountedPrompts
from forebay.admission.length_law import LengthLaw
from forebay.admission.lengths import OutputLengths
from forebay.admission.model import Cost, Demand, Usage
from forebay.admission.prefixes import PrefixCaches
from forebay.admission.prompt_ratio import TRUSTED_AFTER, PromptRatios
from forebay.admission.record import record
from forebay.admission.settings import PoolSettings, SpeedLaw

DECAY: Final = 0.98
"""Per answer: means over about 50 of them."""
CHANGED: Final = 0.1
"""A law that changes neither part of a usual request's cost by more is not worth estimating everything anew."""
ODD_AT_FIRST: Final = 6.0
ODD_WHEN_SURE: Final = 3.0
"""Times by which an engine's count of some prompts may be off what was expected of them."""
USUAL_PROMPT_TOKENS: Final = 1000.0
USUAL_OUTPUT_TOKENS: Final = 200.0
"""What a usual request is like before any was seen."""


@record
class Price:
    """What one request is expected to take."""

    cost: Cost
    lengths: LengthLaw
    """How long one of its answers may become, without the cap."""
    cap: int
    """The most output tokens that one of its answers can have."""


def flat_of(settings: PoolSettings) -> dict[str, int]:
    """What a request takes that is not made of tokens, by its kind."""
    return {
        "audio": settings.to_work_us(settings.audio_gpu_s),
        "image": settings.to_work_us(settings.image_gpu_s),
    }


class Pricing:
    """Estimates for one pool, and what they are made of."""

    __slots__ = (
        "_says_cached",
        "_told_cached",
        "context_tokens",
        "flat_us",
        "law",
        "lengths",
        "max_output_tokens",
        "output_error",
        "prefixes",
        "ratios",
        "usual_output_tokens",
        "usual_prompt_tokens",
    )

    def __init__(
        self, law: SpeedLaw, max_output_tokens: int | None, flat_us: dict[str, int] | None = None
    ) -> None:
        self.law = law
        """Of the reference endpoint."""
        self.flat_us = flat_us or {}
        """Work of what is not made of tokens, by its kind (`Demand.flat`)."""
        self.max_output_tokens = max_output_tokens
        self.context_tokens: int | None = None
        """The largest context window of any endpoint; None if one of them does not say."""
        self.ratios = PromptRatios()
        self.lengths = OutputLengths()
        self.prefixes = PrefixCaches()
        self._told_cached = False
        """Since engines last counted, usage told how many tokens of a prompt were cached."""
        self._says_cached = False
        """Usage has told it once."""
        self.output_error: float | None = None
        """Decayed mean of true over expected output tokens, of whole answers; None before the first."""
        self.usual_prompt_tokens = USUAL_PROMPT_TOKENS
        self.usual_output_tokens = USUAL_OUTPUT_TOKENS

    def reconfigure(self, settings: PoolSettings) -> None:
        """Other settings of its pool."""
        self.max_output_tokens = settings.max_output_tokens
        self.flat_us = flat_of(settings)

    def price(self, demand: Demand) -> Price:
        """Estimate a request."""
        if demand.flat:
            work_us = self.flat_us[demand.flat] * demand.samples
            return Price(
                Cost(work_us, 0, 0, 0, 0), self.lengths.expect(demand.class_name, demand.tenant, 0), 1
            )
        prompt = self.prompt_tokens(demand)
        each = prompt if demand.prompts <= 1 else prompt // demand.prompts
        cap = (self.context_tokens or 2 * self.law.kv_tokens) - each
        limit = demand.max_output_tokens
        if limit is not None and limit < cap:
            cap = limit
        limit = self.max_output_tokens
        if limit is not None and limit < cap:
            cap = limit
        if cap < 1:
            cap = 1
        lengths = self.lengths.expect(demand.class_name, demand.tenant, each)
        estimate = cost.estimate(
            self.law,
            lengths,
            prompt_tokens=prompt,
            cached_tokens=self.prefixes.expect(demand.prefix_hash, prompt),
            cap=cap,
            samples=demand.samples,
            generates=demand.generates,
            prompts=demand.prompts,
        )
        return Price(estimate, lengths, cap)

    def prompt_tokens(self, demand: Demand) -> int:
        """Expected prompt tokens."""
        prompt = demand.prompt_tokens
        if prompt is None:
            prompt = self.ratios.of(demand.model).estimate(demand.prompt_bytes)
        return prompt + demand.extra_prompt_tokens

    def surely_needs(self, demand: Demand) -> int:
        """Tokens that its longest prompt has at the very least: what a refusal for size rests on."""
        known = demand.prompt_tokens
        tokens = known if known is not None else self.ratios.of(demand.model).at_least(demand.prompt_bytes)
        return tokens if demand.prompts <= 1 else tokens // demand.prompts

    def learn_usage(self, demand: Demand, usage: Usage) -> None:
        """The engine said how many prompt tokens a request had, and how many of them it knew."""
        if demand.prompt_tokens is None and not demand.extra_prompt_tokens:
            self.ratios.observe(demand.model, demand.prompt_bytes, usage.prompt_tokens, demand.prompts)
        cached_tokens = self.cached_of(usage)
        if cached_tokens is not None and not demand.flat:
            self._says_cached = self._told_cached = True
            self.prefixes.observe(demand.prefix_hash, usage.prompt_tokens, cached_tokens)

    def cached_of(self, usage: Usage) -> int | None:
        """How many prompt tokens were cached; None if nobody knows.

        Some engines leave the count out where it is nought: from the first time on that it was there, what is not there
        is nought.
        """
        if usage.cached_tokens is None:
            return 0 if self._says_cached else None
        return min(usage.cached_tokens, usage.prompt_tokens)

    def cached_at_end(self, usage: Usage, expected_tokens: int) -> int:
        """Cached prompt tokens of a request that is over: those expected where nobody knows, less than the prompt."""
        known = self.cached_of(usage)
        if known is not None:
            return known
        most = usage.prompt_tokens - 1  # an engine works out at least the last
        return max(min(expected_tokens, most), 0)

    def learn_counted(self, counted: CountedPrompts) -> None:
        """An engine counted some prompts together.

        What usage told of them may be counted again: it is as true. Not so of cached tokens, of which only the sum is
        known here.
        """
        told_cached, self._told_cached = self._told_cached, False
        tokens, expected = counted.tokens, 0
        text_bytes, text_tokens, texts = 0, tokens, 0
        all_text = True
        for demand, its_tokens in counted.prompts:
            expected += its_tokens
            if demand.extra_prompt_tokens:
                all_text = False
            if demand.prompt_tokens is None:
                text_bytes += demand.prompt_bytes
                texts += 1
            else:
                text_tokens -= demand.prompt_tokens
        model = counted.prompts[0][0].model
        of_one_model = all(demand.model == model for demand, _ in counted.prompts)
        sure = self.ratios.common.observations >= TRUSTED_AFTER
        off = ODD_WHEN_SURE if sure else ODD_AT_FIRST
        if not expected <= off * tokens <= off * off * expected:
            return  # somebody else's prompts are among them, or the engine counts something else
        if texts and all_text and of_one_model:
            self.ratios.observe(model, text_bytes, text_tokens, texts)
        if counted.cached_tokens is not None and not told_cached:
            each = [(demand.prefix_hash, its * tokens // expected) for demand, its in counted.prompts]
            self.prefixes.observe_together(each, counted.cached_tokens)

    def learn_output(self, demand: Demand, price: Price, output_tokens: int, *, whole: bool) -> None:
        """An answer is over.

        Args:
            price: what was expected.
            output_tokens: over all samples.
            whole: False if it was cut off, by whoever: then it would have become at least so long.
        """
        if not demand.generates or output_tokens <= 0:
            return
        samples = demand.samples
        each = output_tokens // samples if samples > 1 else output_tokens
        # One that ends exactly at its limit was cut off by it: the limit must not teach lengths.
        self.lengths.observe(
            demand.class_name,
            demand.tenant,
            price.cost.prompt_tokens // demand.prompts if demand.prompts > 1 else price.cost.prompt_tokens,
            each,
            censored=not whole or each >= min(price.cap, demand.cut_output_tokens or price.cap),
        )
        if whole:
            off = output_tokens / max(price.cost.output_tokens, 1)
            known = self.output_error
            self.output_error = off if known is None else known * DECAY + off * (1 - DECAY)
            prompt = self.usual_prompt_tokens
            self.usual_prompt_tokens = prompt + (1 - DECAY) * (price.cost.prompt_tokens - prompt)
            output = self.usual_output_tokens
            self.usual_output_tokens = output + (1 - DECAY) * (each - output)

    def usual_work_us(self, law: SpeedLaw | None = None) -> int:
        """What a usual request takes, by another law than the pool's if one is given."""
        law = self.law if law is None else law
        prompt, output = round(self.usual_prompt_tokens), self.usual_output_tokens
        return cost.prefill_us(law, prompt) + cost.decode_us(law, prompt, output, output * output)

    def take_law(self, law: SpeedLaw) -> float | None:
        """Count with another law from now on, if that makes a difference.

        Returns:
            What a usual request costs by it over what it cost before; None if the law is kept.
        """
        prompt, output = round(self.usual_prompt_tokens), self.usual_output_tokens
        before, now = cost.prefill_us(self.law, prompt), cost.prefill_us(law, prompt)
        before_decode = cost.decode_us(self.law, prompt, output, output * output)
        now_decode = cost.decode_us(law, prompt, output, output * output)
        moved = max(abs(now - before), abs(now_decode - before_decode))
        if moved <= CHANGED * (before + before_decode) or now + now_decode <= 0:
            return None
        self.law = law
        return (now + now_decode) / max(before + before_decode, 1)

    def export(self) -> dict[str, object]:
        """What a next start may take up, as plain data (JSON)."""
        return {"prompt_ratios": self.ratios.export(), "lengths": self.lengths.export()}

    def restore(self, data: object) -> None:
        """Take up what `export` gave. Raises: ValueError if it is not of that form."""
        if not isinstance(data, dict):
            raise ValueError("it is no object")
        self.ratios.restore(data.get("prompt_ratios"))
        self.lengths.restore(data.get("lengths"))
