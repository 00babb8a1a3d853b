"""Any server with the OpenAI API and no metrics that we know: a proof of life, and nothing about its load.

`/health` where it exists, else the list of models. Neither proves that the engine works (a stuck one still answers),
and a slow answer does not prove that it does not; the samples say only that the process is there.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind
from forebay.engines.base import Reading, positive, sign_of_life
from forebay.engines.reading import Answer, Look

__all__ = ["FAMILY", "OpenAi"]

HEALTH: Final = "/health"
MODELS: Final = "/v1/models"


class OpenAi:
    """What is left when no family claims the engine."""

    kind: Final = EngineKind.OPENAI
    describing_paths: Final = (MODELS, HEALTH)
    least_interval_s: Final = 1.5

    def claims(self, look: Look) -> bool:
        """False: this family is the fallback, taken when nobody else claims the engine."""
        del look
        return False

    def describe(self, look: Look) -> EngineInfo:
        lengths = [
            tokens
            for entry in look.models()
            for key in ("max_model_len", "context_length", "context_window")
            if (tokens := positive(entry.get(key)))
        ]
        return EngineInfo(
            kind=self.kind,
            models=look.model_names(),
            checks_model_names=False,
            context_tokens=max(lengths, default=None),
            linger_s=1.0,
            aborts_unstreamed=True,
            reports_load=False,
            counts_while_running=False,
            closes_after_stream=False,
        )

    def sample_path(self, look: Look) -> str:
        health = look.answers.get(HEALTH)
        return HEALTH if health is not None and health.status == 200 else MODELS

    def read(self, path: str, answer: Answer) -> Reading | None:
        """A sample without numbers if the server is there.

        A refusal of the list (401, 404) is an answer all the same; a server that says by its status that it is not well
        is taken at its word.
        """
        return None if path == HEALTH and answer.status != 200 else sign_of_life(answer)


FAMILY: Final = OpenAi()
