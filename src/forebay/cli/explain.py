"""`forebay explain`: why a running gateway treated a request so."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import click

from forebay.cli.admin_client import AdminClient, admin_option

__all__ = ["command"]

_EPILOG = """
\b
  forebay explain 5f1c9a0b3d7e-2a
  forebay explain my-call-17 --admin gateway-0:9321
"""


@click.command("explain", epilog=_EPILOG)
@click.argument("request_id")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="Print all that the admin API says of it.")
def command(*, request_id: str, admin: str | None, as_json: bool) -> None:
    """Say why a request was refused, had to wait, or was let in.

    REQUEST_ID is the x-forebay-id of its answer, which every answer and every error has, or the x-request-id that its
    client sent. It is asked of the gateway process that answered; each keeps its last 2000 decisions, and of those to
    start at once the last 200.

    First comes what happened, in plain sentences; then the checks that were made, with what was found and what is
    allowed; then what would have let it in. While it waits, its position and the expected rest of its wait are shown.
    """
    told = AdminClient(admin).get(f"/api/requests/{urllib.parse.quote(request_id, safe='')}")
    if as_json:
        click.echo(json.dumps(told))
    else:
        for line in _lines(told):
            click.echo(line)


def _lines(told: dict[str, Any]) -> list[str]:
    ids = [told["id"], *([f"sent as {told['request_id']}"] if "request_id" in told else [])]
    explanation = told["explanation"]
    lines = [f"Request {', '.join(ids)}: {told['state']}", "", *explanation["summary"]]
    if explanation["checks"]:
        lines += ["", *_table(explanation["checks"])]
    if explanation["would_admit"]:
        lines += ["", "What would have let it in:"]
        lines += [f"  - {remedy}" for remedy in explanation["would_admit"]]
    return lines


def _table(checks: list[dict[str, Any]]) -> list[str]:
    """One line for each check, in columns."""
    rows = [("check", "", "found", "at most", "what is compared")]
    for check in checks:
        verdict = "ok" if check["passed"] else ("DECIDED" if check["decided"] else "failed")
        rows.append((check["name"], verdict, check["found"], check["allowed"], check["what"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]
