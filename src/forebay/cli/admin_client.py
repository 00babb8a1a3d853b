"""Asks a running gateway's admin API, for the commands that look at one or steer it.

Owns the options that they share. Every failure becomes one sentence that says what to do.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["AdminClient", "admin_option"]

_DEFAULT = "127.0.0.1:9321"
_TIMEOUT_S = 10.0
_MOST_BYTES = 64 * 1024 * 1024

F = TypeVar("F", bound=Callable[..., Any])


def admin_option(command: F) -> F:
    """`--admin`, the same on every command."""
    return click.option(
        "--admin",
        metavar="URL",
        envvar="FOREBAY_ADMIN",
        help=f"The gateway's admin address, as a URL or HOST:PORT.  [default: {_DEFAULT}]",
    )(command)


class AdminClient:
    """One gateway, asked over its admin port."""

    def __init__(self, admin: str | None) -> None:
        """See the class.

        Args:
            admin: URL or HOST:PORT; a port alone, or `:PORT`, is on this machine. None: the default.
        """
        self.url = _url(admin or _DEFAULT)

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        return self._ask(urllib.request.Request(self.url + path))  # noqa: S310 - as `_url` says

    def post(self, path: str, body: Any) -> Any:
        """The answer to a JSON body."""
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method="POST")  # noqa: S310 - as `_url` says
        return self._ask(request)

    def _ask(self, request: urllib.request.Request) -> Any:
        """Raises: click.ClickException, which says what to do."""
        credential = os.environ.get("FOREBAY_ADMIN_TOKEN")
        if credential:
            request.add_unredirected_header("authorization", f"Bearer {credential}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise click.ClickException(_told(error.code, error.read(_MOST_BYTES))) from None
        except json.JSONDecodeError:
            message = f"{self.url} does not answer as a Forebay admin API; is that the admin port?"
            raise click.ClickException(message) from None
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise click.ClickException(
                f"no gateway can be reached at {self.url} ({reason}); name its admin address with --admin"
            ) from None


def _url(admin: str) -> str:
    text = admin.strip().rstrip("/")
    if text.isdecimal():
        text = f":{text}"
    if text.startswith(":"):
        text = f"127.0.0.1{text}"
    if text.startswith("0.0.0.0:"):  # as it stands in a configuration
        text = text.replace("0.0.0.0", "127.0.0.1", 1)
    if "://" not in text:
        text = f"http://{text}"
    if not text.startswith(("http://", "https://")):
        raise click.UsageError(f"--admin {admin!r}: give an http URL, or HOST:PORT")
    return text


def _told(status: int, body: bytes) -> str:
    """What an error answer says."""
    if status == 401:
        return "the admin API wants its credential: set FOREBAY_ADMIN_TOKEN"
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the admin API answered {status}: {body[:200].decode(errors='replace').strip()}"
