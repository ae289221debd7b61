"""Under which heading of time a conversation is listed."""

from __future__ import annotations

from datetime import date, datetime, timedelta


def heading(updated: float, today: date) -> str:
    """`updated`: seconds since 1970, told in this machine's time zone."""
    day = datetime.fromtimestamp(updated).astimezone().date()
    if day >= today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    if day > today - timedelta(days=7):
        return "Last 7 days"
    if day > today - timedelta(days=30):
        return "Last 30 days"
    return f"{day:%B %Y}" if day.year != today.year else f"{day:%B}"
