"""The file that is left behind when the core fails: the error and the last events, enough to run them again.

Bounded by the number of events that the driver keeps. Events hold sizes, names and times, never prompts or keys.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

import msgspec

from forebay import __version__
from forebay.admission.events import Event

__all__ = ["write_dump"]


def write_dump(
    error: BaseException, events: Iterable[tuple[float, Event]], directory: Path | None = None
) -> Path:
    """One JSON document per line: first what happened, then the events, oldest first.

    Raises:
        OSError: the directory cannot be written.
    """
    encode = msgspec.json.Encoder(enc_hook=repr).encode
    head = {
        "forebay": __version__,
        "error": repr(error),
        "traceback": traceback.format_exception(error),
    }
    handle, name = tempfile.mkstemp(prefix=f"forebay-dump-{os.getpid()}-", suffix=".jsonl", dir=directory)
    with os.fdopen(handle, "wb") as file:
        file.write(encode(head) + b"\n")
        for at_s, event in events:
            file.write(encode({"at_s": at_s, "type": type(event).__name__, "event": event}) + b"\n")
    return Path(name)
