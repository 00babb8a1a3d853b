"""`forebay schema`."""

from __future__ import annotations

import json

from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.config import json_schema


def test_schema_is_one_json_document() -> None:
    """The output is the JSON Schema of the configuration and nothing else."""
    result = CliRunner().invoke(cli, ["schema"])
    assert (0, json_schema()) == (result.exit_code, json.loads(result.stdout))
