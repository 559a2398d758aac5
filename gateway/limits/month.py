"""Calendar months of UTC, as budgets count them."""

from datetime import UTC, datetime


def month_of(now: float) -> str:
    """The month of a second since the epoch, as 2026-01."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")


def rest_of_month(now: float) -> float:
    """Seconds until the next month."""
    at = datetime.fromtimestamp(now, UTC)
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp() - now
