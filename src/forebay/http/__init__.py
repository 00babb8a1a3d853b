"""HTTP/1.1 at protocol level, server and client, for one event loop.

Callbacks only: no task, future or timer is made per request, because at tens of microseconds per request those
are what a request would cost most. Policy stays out: what to answer, where to send and what to retry is decided
above. See `server` (and `exchange`), `client`, `sse`; `message` has the values they share.
"""
