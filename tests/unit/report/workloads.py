"""Records of known shape, as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from forebay.config.mapping import law_of
from forebay.load.record_line import RecordLine
from forebay.profiles import DEFAULT_PROFILE, load_profile
from forebay.report.survey import Survey, survey

LAW = law_of(load_profile(DEFAULT_PROFILE))


def line(number: int, **changes: Any) -> RecordLine:
    """A request that went well, one of two a second."""
    usual: dict[str, Any] = {
        "forebay": 1, "timestamp": number * 500, "time": 1e9 + number / 2, "input_length": 100,
        "output_length": 50, "pool": "p", "class_name": "standard", "tenant": "acme", "model": "m",
        "prompt_tokens": 100, "output_tokens": 50, "output_expected": 40, "cached_tokens": 25,
        "decision": "dispatch", "decided_by": "passed", "outcome": "completed", "endpoint": "http://10.0.0.1:8000",
        "attempts": 1, "wait_budget_s": 5.0, "wait_predicted_s": 0.0, "ttft_s": 0.2, "tpot_s": 0.02,
        "duration_s": 1.2, "cost_expected_gpu_s": 0.1, "cost_gpu_s": 0.12, "met": True,
    }  # fmt: skip
    return RecordLine(**usual | changes)


def record(path: Path, count: int, changes: Callable[[int], dict[str, Any]] = lambda _: {}) -> Path:
    """A file of so many."""
    encode = msgspec.json.encode
    path.write_bytes(b"".join(encode(line(number, **changes(number))) + b"\n" for number in range(count)))
    return path


def surveyed(*sources: str | Path, **more: Any) -> Survey:
    """What is found in them."""
    return survey([str(source) for source in sources], LAW, DEFAULT_PROFILE, **more)
