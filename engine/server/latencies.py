"""How long requests wait for the runtime's words, as histograms for monitoring."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics

_WAIT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_REQUEST = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a further series for each, which says when this server was started


class Latencies:
    """Seconds, measured where the server gets the runtime's events."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue = self._histogram(
            "headrace_request_queue_seconds", "From a request to its admission.", _WAIT
        )
        self.first_token = self._histogram(
            "headrace_time_to_first_token_seconds", "From a request to its first token.", _WAIT
        )
        self.next_token = self._histogram(
            "headrace_time_between_tokens_seconds", "From a token to the next one.", _TOKEN
        )
        self.request = self._histogram(
            "headrace_request_seconds",
            "From a request to the end of its answer, where it has one.",
            _REQUEST,
        )

    def _histogram(self, name: str, said: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, said, buckets=buckets, registry=self.registry)
