"""Where everything is put together: the driver of the core, and the process around it."""

from __future__ import annotations
