"""Muon for the matrices, AdamW for everything else, over stacked parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VECTORS = ("embedding", "router", "switch")
"""Two-dimensional in name, yet trained by AdamW: each row stands for itself."""


def orthogonalise(gradient: Tensor, steps: int = 5) -> Tensor:
    """The nearest half-orthogonal matrix, roughly, by Newton-Schulz (last two dimensions)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    kind = torch.bfloat16 if gradient.is_cuda else torch.float32
    x = gradient.to(kind)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = (x.mT if tall else x).to(gradient.dtype)
    return result


class Optimiser:
    """Steps of both kinds with one call; its state is one dictionary of tensors."""

    def __init__(
        self, parameters: dict[str, nn.Parameter], matrix: float, vector: float, decay: float
    ) -> None:
        self.parameters = parameters
        self.rates = {n: matrix if self._is_matrix(n) else vector for n in parameters}
        self.decay = decay
        self.count = 0
        self.first = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.second = {
            n: torch.zeros_like(p) for n, p in parameters.items() if not self._is_matrix(n)
        }

    def _is_matrix(self, name: str) -> bool:
        plain = name not in VECTORS and not name.endswith(("norm", "bias"))
        return plain and self.parameters[name].dim() > 2

    @torch.no_grad()
    def step(self, share: float) -> Tensor:
        """Update by the gradients at `share` of the full rate; returns the gradient's norm."""
        self.count += 1
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        size = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (1.0 / (size + 1e-6)).clamp(max=1.0))
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            rate = self.rates[name] * share
            first = self.first[name]
            if self._is_matrix(name):
                first.mul_(0.95).add_(p.grad)
                update = orthogonalise(p.grad + 0.95 * first)
                # Scaled so that an entry moves about as far as under AdamW.
                update = update * (0.2 * max(p.shape[-2:]) ** 0.5)
                p.mul_(1 - rate * self.decay)
            else:
                first.lerp_(p.grad, 0.1)
                second = self.second[name].lerp_(p.grad.square(), 0.02)
                corrected = (second / (1 - 0.98**self.count)).sqrt_().add_(1e-8)
                update = first / (1 - 0.9**self.count) / corrected
            p.add_(update, alpha=-rate)
            p.grad = None
        norm: Tensor = size
        return norm

    def state(self) -> dict[str, object]:
        return {"count": self.count, "first": self.first, "second": self.second}

    def load(self, state: dict[str, object]) -> None:
        self.count = int(state["count"])  # type: ignore[call-overload]
        for mine, theirs in ((self.first, state["first"]), (self.second, state["second"])):
            assert isinstance(theirs, dict)
            for name, value in theirs.items():
                mine[name].copy_(value)
