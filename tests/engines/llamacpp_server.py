"""llama.cpp's own HTTP server, which the `xllamacpp` wheel carries, on a port of 127.0.0.1 until SIGTERM.

Runs in the environment that `scripts/engines.sh llamacpp` makes; started by `real.py`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
from pathlib import Path
from typing import Any


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", default="small")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=8192, help="tokens, over all slots")
    parser.add_argument(
        "--unified", action="store_true", help="one KV cache for all slots instead of a part for each"
    )
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--embeddings", action="store_true")
    options = parser.parse_args()

    xllamacpp: Any = importlib.import_module("xllamacpp")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(options.model)
    settings.model_alias = options.alias if isinstance(settings.model_alias, str) else {options.alias}
    settings.hostnames = ["127.0.0.1"]
    settings.port = options.port
    settings.n_parallel = options.slots
    settings.n_ctx = options.context
    settings.n_batch = settings.n_ubatch = 512
    settings.kv_unified = options.unified
    settings.ctx_shift = False
    settings.use_jinja = True
    settings.endpoint_metrics = not options.no_metrics
    if options.embeddings:
        settings.embedding = True
        settings.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    settings.endpoint_slots = True
    settings.endpoint_props = True
    # One thread: with two, and anything else on two cores, its spinning barrier is ten times slower.
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)
    print("listening on", server.listening_address, flush=True)  # noqa: T201
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # its destructor waits for requests to end


if __name__ == "__main__":
    # Before any thread of the server exists, so that all inherit it and only `sigwait` sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
