"""Where a pool's GPUs tell how busy they are. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from forebay.config.strict import Strict
from forebay.config.units import EndpointUrl, parse_endpoint_url

__all__ = ["GPU_METRICS_JSON_SCHEMA", "Endpoint", "GpuMetrics"]

Endpoint = Annotated[
    EndpointUrl,
    BeforeValidator(parse_endpoint_url),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "uri", "examples": ["http://10.0.0.1:8000"]}),
]


def _without_tls(url: EndpointUrl) -> EndpointUrl:
    if url.tls:
        raise ValueError("exporters are read by http://; TLS is for engines only")
    return url


class GpuMetrics(Strict):
    """DCGM exporters that tell how busy a pool's GPUs are."""

    exporters: Annotated[
        list[Annotated[Endpoint, AfterValidator(_without_tls)]], Field(min_length=1, max_length=1000)
    ]
    """One for each machine, `http://HOST:9400`; their `/metrics` are read once a second."""
    labels: Annotated[dict[str, str], Field(max_length=20, default_factory=dict)]
    """Which of their GPUs are the pool's, by labels: `{pod: "llama-*"}`, `*` stands for anything. Unset is all."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """A list alone is that of the exporters."""
        return {"exporters": value} if isinstance(value, list) else value


_EXPORTERS: Final = {
    "type": "array",
    "items": {"type": "string", "format": "uri"},
    "minItems": 1,
    "maxItems": 1000,
}
GPU_METRICS_JSON_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        _EXPORTERS,
        {
            "type": "object",
            "properties": {
                "exporters": _EXPORTERS,
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["exporters"],
            "additionalProperties": False,
        },
    ]
}
