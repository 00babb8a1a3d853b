"""Bodies of synthetic chat requests: the wished number of prompt tokens, and no two alike.

Owns the text that stands for a prompt. Every prompt differs from its first word on, so that a prefix cache finds
nothing to reuse: what is shown then is the work itself. It never sends anything.
"""

from __future__ import annotations

import json
from typing import Final

from forebay.load.workload import Arrival

BYTES_PER_TOKEN: Final = 4
"""Rule of thumb for English text, and exactly what the emulator counts."""
TEMPLATE_TOKENS: Final = 7
"""What a chat template adds around one message."""
_TEXT: Final = (
    "Snow melts in the hills and the river rises by noon. The keeper at the weir reads the gauge, opens one gate "
    "by a hand's breadth and writes the hour in the book. What the turbines can take goes through; what they "
    "cannot waits in the basin, and when the basin is full the rest is led past at once. "
)


class ChatBodies:
    """Composes one JSON body per arrival."""

    def __init__(self, model: str, label: str) -> None:
        """A composer of requests for one model.

        Args:
            model: the name that the server serves.
            label: begins every prompt; two runs with different labels share no prefix.
        """
        self._model = json.dumps(model)
        self._label = label

    def __call__(self, arrival: Arrival) -> bytes:
        """The body of one request."""
        stream = '"stream":true,"stream_options":{"include_usage":true},' if arrival.stream else ""
        text = prompt_text(f"{self._label} {arrival.index}. ", arrival.prompt_tokens)
        # The emulator is told how long the answer would be; anything else takes it for an unknown field.
        return (
            f'{{"model":{self._model},{stream}"max_tokens":{arrival.limit_tokens},'
            f'"emulator_output_tokens":{arrival.output_tokens},'
            f'"messages":[{{"role":"user","content":{json.dumps(text)}}}]}}'
        ).encode()


def prompt_text(start: str, prompt_tokens: int, bytes_per_token: float = BYTES_PER_TOKEN) -> str:
    """Text that makes a chat prompt of about this many tokens."""
    length = max(1, round(max(1, prompt_tokens - TEMPLATE_TOKENS) * bytes_per_token))
    repeats = length // len(_TEXT) + 1
    return (start + _TEXT * repeats)[:length]
