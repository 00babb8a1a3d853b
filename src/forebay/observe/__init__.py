"""What operators see: metrics, the recent decisions, the log and the admin API. Watches, and decides nothing."""

from __future__ import annotations
