"""For one's own services that call through Forebay: httpx transports that come back when, and only when, they should.

    client = openai.OpenAI(max_retries=0, http_client=openai.DefaultHttpxClient(transport=RetryTransport()))

`policy` decides (pure: times and chance are passed in), `transports` send and wait. These are for httpx2, which the
OpenAI and Anthropic SDKs use; `forebay.client.httpx` has the same for httpx, which their older versions use. Nothing
else of Forebay is imported here, and nothing else of Forebay imports this: it runs in other people's processes.
"""

from __future__ import annotations

try:
    import httpx2  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("forebay.client needs httpx2: pip install 'forebay[client]'") from error

from forebay.client.policy import RetryBudget, RetryPolicy
from forebay.client.transports import AsyncRetryTransport, RetryTransport

__all__ = ["AsyncRetryTransport", "RetryBudget", "RetryPolicy", "RetryTransport"]
