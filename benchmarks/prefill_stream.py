"""How well a prompt's time hides the experts that it lacks: streamed, without overlap, and fetched.

For each share of experts in slots and each length: seconds to the first token with every way that
experts may come (engine/experts/regime.py), beside what can be reached, the larger of the time with
all experts in slots and of what is absent over the link's rate. Then the hit rate of 64 tokens
before such a prompt and after it.

python3 benchmarks/prefill_stream.py --model FOLDER [--tokens 4096 8192] [--rates 0.37 0.12]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import cast, get_args

from engine.experts.regime import StreamMode
from engine.experts.runtime import ExpertCounters
from engine.messages import RequestFailed, Sampled, Sampling, Submit
from engine.options import DeviceName, EngineOptions
from engine.runtime.debug import DebugFaults
from engine.runtime.engine import Engine
from engine.runtime.loading import load
from engine.runtime.parts import Parts

LOAD_RATE = 0.75
"""Below 1, since a pool that was full once knows that nothing is missed."""
DECODED = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", required=True)
    add("--device", default="cuda")
    add("--tokens", type=int, nargs="+", default=[4096, 8192, 16384])
    add("--rates", type=float, nargs="+", default=[0.75, 0.37, 0.12])
    add("--modes", nargs="+", choices=get_args(StreamMode), default=["never", "serial", "always"])
    add("--chunk", type=int, default=8192)
    add("--rounds", type=int, default=3)
    options = parser.parse_args()
    longest = max(options.tokens) + 2 * DECODED + 64
    parts = load(
        EngineOptions(
            model=options.model,
            device=cast("DeviceName", options.device),
            moe_cache_rate=LOAD_RATE,
            max_sequences=1,
            context_tokens=longest,
            prefill_chunk_tokens=min(options.chunk, longest),
        )
    )
    run = Run(parts)
    full: dict[int, float] = {}
    """Seconds with every expert in a slot."""
    experts = run.experts
    print(
        f"{'rate':>5} {'tokens':>6} {'mode':>7} {'seconds':>8} {'least':>7} {'ratio':>6}  GB sent"
    )
    run.resize(1.0)
    for tokens in options.tokens:
        run.mode = "always"
        run.prompt(tokens)
        full[tokens] = median(run, tokens, options.rounds)
        print(f"{1.0:5} {tokens:6} {'':7} {full[tokens]:8.3f}", flush=True)
    stride = experts.store.plans[0].spec.stride
    for rate in options.rates:
        run.resize(rate)
        for tokens in options.tokens:
            for mode in options.modes:
                run.mode = mode
                run.prompt(tokens)
                sent = experts.counters().link_bytes
                seconds = median(run, tokens, options.rounds)
                sent = (experts.counters().link_bytes - sent) // options.rounds
                link = experts.link_bytes_per_s
                chunks = -(-tokens // options.chunk)
                absent = (experts.experts_total - sum(experts.slots)) * stride * chunks
                least = max(full[tokens], absent / link)
                print(
                    f"{rate:5} {tokens:6} {mode:>7} {seconds:8.3f} {least:7.3f} "
                    f"{seconds / least:6.2f}  {sent / 1e9:.2f}",
                    flush=True,
                )
        for mode in options.modes:
            run.mode = mode
            earlier, later, speed = run.hit_rates(max(options.tokens) // 2)
            print(
                f"{rate:5} {mode:>7} hits before {earlier:.3f} after {later:.3f}, "
                f"{speed:.1f} tok/s after",
                flush=True,
            )
    print(f"link {experts.link_bytes_per_s / 1e9:.1f} GB/s")


def median(run: Run, tokens: int, rounds: int) -> float:
    return statistics.median(run.prompt(tokens) for _ in range(rounds))


class Run:
    def __init__(self, parts: Parts) -> None:
        assert parts.experts is not None
        self.experts = parts.experts
        self._parts = parts
        self._chance = random.Random(1)
        self._engines: dict[StreamMode, Engine] = {}
        self.mode: StreamMode = "always"

    def resize(self, rate: float) -> None:
        self.experts.resize([max(1, int(rate * self.experts.experts_total))])

    @property
    def _engine(self) -> Engine:
        if self.mode not in self._engines:
            self._engines[self.mode] = Engine(self._parts, DebugFaults(stream=self.mode))
        return self._engines[self.mode]

    def _run(self, tokens: list[int], most: int) -> list[tuple[float, ExpertCounters]]:
        """When each token came, in seconds after the submission, and the counters then."""
        engine = self._engine
        sampling = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=1)
        engine.submit(Submit(request=0, tokens=tokens, max_tokens=most, sampling=sampling))
        begin, came = time.perf_counter(), []
        while engine.has_work:
            for event in engine.step():
                assert not isinstance(event, RequestFailed), event
                if isinstance(event, Sampled):
                    counters = self.experts.counters()
                    came.append((time.perf_counter() - begin, counters))
        return came

    def _drawn(self, count: int) -> list[int]:
        return [self._chance.randrange(self._engine.ready.vocab_size) for _ in range(count)]

    def prompt(self, tokens: int) -> float:
        """Seconds to the first token."""
        return self._run(self._drawn(tokens), 1)[0][0]

    def hit_rates(self, tokens: int) -> tuple[float, float, float]:
        """Of DECODED tokens before a prompt and after it, and the speed of the latter."""
        before = self._run(self._drawn(32), 2 * DECODED)[DECODED - 1 :]
        after = self._run(self._drawn(tokens), DECODED + 1)
        seconds = after[-1][0] - after[0][0]
        return _hits(before), _hits(after), (len(after) - 1) / seconds


def _hits(came: list[tuple[float, ExpertCounters]]) -> float:
    first, last = came[0][1], came[-1][1]
    hits, misses = last.hits - first.hits, last.misses - first.misses
    return hits / max(1, hits + misses)


if __name__ == "__main__":
    main()
