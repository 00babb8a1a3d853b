"""The engine model over HTTP: an OpenAI-compatible server with vLLM's metrics and the timing of a measured profile.

For demos, tests and load tests without a GPU. To a client it is vLLM: the same routes, chunks, errors and metric
names, the same silence while a request is queued, the same habits when a client leaves or a SIGTERM comes. What
it says is filler. See `server` to start one, `lengths` for how long prompts and answers are.
"""

from __future__ import annotations

from forebay.emulator.server import EmulatorServer, EmulatorSettings

__all__ = ["EmulatorServer", "EmulatorSettings"]
