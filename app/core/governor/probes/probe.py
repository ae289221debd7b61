"""What a probe that cannot look raises."""

from __future__ import annotations


class NotAvailable(Exception):
    """Says in a sentence why there is nothing to see; it may be otherwise the next time."""
