from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config import ConfigError, load


def read(tmp_path: Path, value: str) -> object:
    """A pool with this."""
    path = tmp_path / "f.yaml"
    path.write_text(f"pools: [{{endpoints: ['http://a:1'], gpu_metrics: {value}}}]\n")
    return load(path, environ={}).config.pools[0].gpu_metrics


def test_a_list_is_enough(tmp_path: Path) -> None:
    """Labels say which GPUs where others use the machine too."""
    found = read(tmp_path, "['http://n1:9400', 'http://n2:9400/']")
    assert found is not None
    assert ["http://n1:9400", "http://n2:9400"] == [str(e) for e in found.exporters]  # type: ignore[attr-defined]
    labelled = read(tmp_path, "{exporters: ['http://n1:9400'], labels: {pod: 'llama-*'}}")
    assert {"pod": "llama-*"} == labelled.labels  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[]", "gpu_metrics.exporters: too short"),
        ("http://n1:9400", "gpu_metrics: found the text 'http://n1:9400', expected a mapping"),
        ("['https://n1:9400']", "gpu_metrics.exporters[0]: exporters are read by http://"),
        (
            "{exporters: ['http://n1:9400'], label: {}}",
            "gpu_metrics.label: unknown key; did you mean labels?",
        ),
        (
            "{exporters: ['http://n1:9400'], labels: {pod: 5}}",
            "gpu_metrics.labels.pod: found 5, expected text",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, value: str, said: str) -> None:
    """With their place."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, value)
    assert said in str(caught.value)
