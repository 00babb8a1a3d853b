"""Any server with the OpenAI API and no metrics that we know: a proof of life, and nothing about its load.

`/health` where it exists, else the list of models. Neither proves that the engine works (a stuck one still answers),
and a slow answer does not prove that it does not; the samples say only that the process is there.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading, Reading, positive, sign_of_life
from forebay.engines.health import HEALTH, unready_by
from forebay.engines.reading import Answer, Look

__all__ = ["FAMILY", "OpenAi"]

MODELS: Final = "/v1/models"


class OpenAi:
    """What is left when no family claims the engine."""

    kind: Final = EngineKind.OPENAI
    describing_paths: Final = (MODELS, HEALTH)
    least_interval_s: Final = 1.5
    health_interval_s: Final = 0.0
    """It is what is sampled."""

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
        tells = health is not None and (health.status == 200 or unready_by(health.status) != "")
        return HEALTH if tells else MODELS

    def read(self, path: str, answer: Answer) -> Reading:
        """A sample without numbers if the server is there.

        A refusal of the list (401, 404) is an answer all the same; a server that says by its health that it is not well
        is taken at its word.
        """
        if path == HEALTH and (unready := unready_by(answer.status)):
            return Reading(EngineSample(at_s=answer.at_s, took_s=answer.took_s, unready=unready))
        if path == HEALTH and answer.status != 200:
            raise NoReading(f"it answers with status {answer.status}")
        return sign_of_life(answer)


FAMILY: Final = OpenAi()
