"""A gateway's admin API that answers what a test says."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Admin(HTTPServer):
    """An admin API that answers what a test says, and keeps what it was asked."""

    status = 200
    answer = b"{}"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, Any, str | None]] = []

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Admin

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: Any) -> None:
        asked = (self.command, self.path, body, self.headers.get("authorization"))
        self.server.asked.append(asked)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""
