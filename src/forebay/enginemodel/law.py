"""How long one step of an engine takes: a law with nine numbers, measured per model and GPU.

    step_ms = t0 + s_lo·min(n, n0) + s_hi·max(n - n0, 0) + c_kv·KV + f_attn·A + g_seq·B + h0 + h1·S

where a step is one iteration over a continuous batch and

- n: tokens computed in the step = prefill-chunk tokens + decoding sequences,
- B: decoding sequences,
- KV: sum of the decoding sequences' context lengths, the token being computed included,
- A: sum over prefill chunks of chunk · (context already computed + chunk / 2): attention within prefill,
- S: sequences in the step, decoding or prefilling.

t0 is reading the weights and launching; up to n0 tokens a step is bound by memory (s_lo), beyond it by compute
(s_hi); c_kv is reading the KV cache; h0 and h1 are the host: scheduler, sampler, HTTP. The names are those of
the profile file, so that a number can be found again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from forebay.enginemodel.errors import MisuseError


@dataclass(frozen=True, slots=True)
class StepLaw:
    """The nine numbers of a step, in milliseconds (per token, per sequence)."""

    t0: float
    """Fixed part on the GPU."""
    n0: int
    """Tokens in a step at which the slope changes from `s_lo` to `s_hi`."""
    s_lo: float
    """Per token up to `n0`."""
    s_hi: float
    """Per token beyond `n0`."""
    c_kv: float
    """Per token of decoding context."""
    f_attn: float
    """Per unit of prefill attention (tokens squared)."""
    g_seq: float
    """Per decoding sequence."""
    h0: float
    """Fixed part on the host."""
    h1: float
    """Per sequence in the step, on the host."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = float(getattr(self, field.name))
            if not math.isfinite(value) or value < 0:
                raise MisuseError(
                    f"step law: {field.name} must be a finite number of at least 0, got {value}"
                )
        if self.t0 + self.h0 <= 0:
            raise MisuseError("step law: t0 + h0 must be above 0, or a step could take no time at all")

    def step_s(
        self, *, prefill_tokens: int, decoding: int, kv_tokens: int, prefill_attention: float, sequences: int
    ) -> float:
        """Seconds that a step with these contents takes."""
        batch_tokens = prefill_tokens + decoding
        if batch_tokens <= self.n0:
            tokens_ms = self.s_lo * batch_tokens
        else:
            tokens_ms = self.s_lo * self.n0 + self.s_hi * (batch_tokens - self.n0)
        return 1e-3 * (
            self.t0
            + self.h0
            + tokens_ms
            + self.c_kv * kv_tokens
            + self.f_attn * prefill_attention
            + self.g_seq * decoding
            + self.h1 * sequences
        )
