"""Tokenizers of pools, from their `tokenizer.json`, with what was learned beside them as long as the file is the same.

The `tokenizers` library is an extra: it is imported where a pool asks for it, and whoever has not installed it is told
how.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from forebay.config import Loaded
from forebay.config.errors import ConfigError, ConfigProblem
from forebay.gateway.counting import PromptCounter

__all__ = ["counters_of"]

LARGEST_BYTES: Final = 256 * 1024 * 1024
_MISSING: Final = "needs the tokenizers library: pip install 'forebay[tokenizer]'"


def counters_of(loaded: Loaded) -> dict[str, PromptCounter]:
    """The counters of pools that have a tokenizer, by the pool's name. Raises: ConfigError."""
    counters: dict[str, PromptCounter] = {}
    problems: list[ConfigProblem] = []
    for index, pool in enumerate(loaded.config.pools):
        if pool.tokenizer is not None:
            path = Path(loaded.base_directory / pool.tokenizer)
            try:
                counters[pool.name] = _counter_of(path)
            except ImportError:
                problems.append(loaded.document.problem(("pools", index, "tokenizer"), _MISSING))
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                message = f"cannot be used: {reason[:200]}"
                problems.append(loaded.document.problem(("pools", index, "tokenizer"), message))
    if problems:
        raise ConfigError(problems)
    return counters


def _counter_of(path: Path) -> PromptCounter:
    file = path / "tokenizer.json" if path.is_dir() else path
    found = file.stat()
    if found.st_size > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    return _load(str(file), found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=32)
def _load(file: str, mtime_ns: int, size_bytes: int) -> PromptCounter:
    """A tokenizer is loaded once for each state of its file: a reload of the configuration keeps it."""
    # Its own threads are for batches; here each text is short, and the cores are for the event loop.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # noqa: BLE001 - the library raises nothing more particular
        raise ValueError(f"it is no tokenizer.json ({error})") from None

    def count(texts: list[str]) -> int:
        return sum(len(one) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    return PromptCounter(count)
