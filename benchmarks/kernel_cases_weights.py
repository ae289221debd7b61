"""Products with stored weights and routed experts at the shapes of Qwen3.6-35B-A3B."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.formats.blob import BlobSpec, blob_spec
from engine.formats.weight import StoredWeight
from engine.kernels.dequantise import dequantise
from engine.kernels.gpu.linear_few import linear_few
from engine.kernels.gpu.linear_many import linear_many
from engine.kernels.gpu.moe_combine import combine
from engine.kernels.gpu.moe_decode import moe_decode
from engine.kernels.gpu.moe_prefill import prefill_rows
from engine.kernels.moe import moe_combine, moe_expert_rows, part_view

HIDDEN, INNER, EXPERTS, ROUTES = 2048, 512, 256, 8


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[], object]
    check: Callable[[], float]
    """Error against the reference: norm of the difference over norm."""
    nbytes: float
    """Fewest bytes through device memory."""
    flops: float = 0.0


def stored(storage: str, rows: int, columns: int, device: str = "cuda") -> StoredWeight:
    """Random, of about unit variance."""
    generator = torch.Generator(device).manual_seed(rows + columns)

    def bits(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator)

    shape = (rows, columns)
    if storage == "fp8_block":
        scale = normal(-(-rows // 128), -(-columns // 128)).abs() + 0.5
        return StoredWeight(
            storage, shape, {"weight": normal(*shape).to(torch.float8_e4m3fn), "scale": scale}
        )
    if storage == "nvfp4":
        scale = (normal(rows, columns // 16).abs() + 0.5).to(torch.float8_e4m3fn)
        parts = {"weight": bits(rows, columns // 2), "scale": scale}
        return StoredWeight(storage, shape, {**parts, "scale_2": torch.tensor(0.3, device=device)})
    if storage == "mxfp4":
        scale = 124 + bits(rows, columns // 32) % 4
        return StoredWeight(storage, shape, {"weight": bits(rows, columns // 2), "scale": scale})
    return StoredWeight(storage, shape, {"weight": normal(*shape).to(getattr(torch, storage))})


def random_bank(spec: BlobSpec, blobs: int, device: str = "cuda") -> Tensor:
    """uint8 [blobs, stride] of random weights of about the size of a model's."""
    generator = torch.Generator(device).manual_seed(blobs)
    bank = torch.randint(
        0, 256, (blobs, spec.stride), dtype=torch.uint8, device=device, generator=generator
    )
    for part in spec.parts:
        view = part_view(bank, spec, part.name)
        if part.dtype == "uint8" and not part.name.endswith("scale"):
            continue
        if part.dtype == "uint8":
            view.copy_(116 + view % 4)
            continue
        for blob in range(0, blobs, 64):
            values = torch.randn(view[blob : blob + 64].shape, device=device, generator=generator)
            if part.name.endswith("scale") or part.name.endswith("scale_2"):
                values = values.abs() + 0.5
            if part.name.endswith("scale_2") or part.dtype == "bfloat16":
                values = values * 0.02
            view[blob : blob + 64] = values.to(view.dtype)
    return bank


def error(got: Tensor, wanted: Tensor) -> float:
    difference = (got.double() - wanted.double()).norm() / wanted.double().norm()
    return float(difference)


def _linear(storage: str, rows: int, columns: int, rows_x: int) -> Case:
    weight = stored(storage, rows, columns)
    x = torch.randn(rows_x, columns, device="cuda").to(torch.bfloat16)
    product = linear_few if rows_x <= 8 else linear_many

    def check() -> float:
        reference = x.double() @ dequantise(weight, torch.float32).double().T
        if rows_x <= 8:
            lone = torch.cat([linear_few(x[i : i + 1], weight, None) for i in range(rows_x)])
            if not torch.equal(lone, linear_few(x, weight, None)):
                return float("nan")
        return error(product(x, weight, None), reference)

    return Case(
        f"linear {storage} [{rows}, {columns}] M={rows_x}",
        lambda: product(x, weight, None),
        check,
        weight.nbytes + x.nbytes + rows_x * rows * 2,
        2.0 * rows * columns * rows_x,
    )


def _decode(storage: str, tokens: int, bank: Tensor, spec: BlobSpec) -> Case:
    """New routes at each run, so that no blob is in the cache."""
    many = [
        torch.randperm(len(bank), device="cuda")[: tokens * ROUTES].view(tokens, ROUTES).int()
        for _ in range(16)
    ]
    x = torch.randn(tokens, HIDDEN, device="cuda").to(torch.bfloat16)
    weights = torch.rand(tokens, ROUTES, device="cuda")
    turn = iter(range(10**9))

    def check() -> float:
        rows = torch.empty(tokens, ROUTES, HIDDEN, device="cuda")
        moe_expert_rows.reference(bank, spec, x.float(), many[0].long(), rows)
        lone = [
            moe_decode(bank, spec, x[i : i + 1], many[0][i : i + 1], weights[i : i + 1])
            for i in range(tokens)
        ]
        got = moe_decode(bank, spec, x, many[0], weights)
        if not torch.equal(torch.cat(lone), got):
            return float("nan")
        return error(got, moe_combine.reference(rows, weights, torch.float32))

    return Case(
        f"experts {storage} M={tokens}",
        lambda: moe_decode(bank, spec, x, many[next(turn) % 16], weights),
        check,
        tokens * ROUTES * spec.nbytes,
        tokens * ROUTES * 6.0 * HIDDEN * INNER,
    )


def _prefill(storage: str, tokens: int, bank: Tensor, spec: BlobSpec) -> Case:
    slots = torch.rand(tokens, EXPERTS, device="cuda").topk(ROUTES).indices.int()
    x = torch.randn(tokens, HIDDEN, device="cuda").to(torch.bfloat16)
    weights = torch.rand(tokens, ROUTES, device="cuda")
    rows = torch.empty(tokens, ROUTES, HIDDEN, device="cuda")

    def run() -> Tensor:
        prefill_rows(bank, spec, x, slots, rows)
        return combine(rows, weights, x.dtype)

    def check() -> float:
        few = slice(0, 64)
        reference = torch.empty(64, ROUTES, HIDDEN, device="cuda")
        moe_expert_rows.reference(bank, spec, x[few].float(), slots[few].long(), reference)
        wanted = moe_combine.reference(reference, weights[few], torch.float32)
        got = run()[few]
        lone = torch.empty(64, ROUTES, HIDDEN, device="cuda")
        prefill_rows(bank, spec, x[few], slots[few], lone)
        if not torch.equal(lone, rows[few]):
            return float("nan")
        return error(got, wanted)

    return Case(
        f"experts {storage} T={tokens}",
        run,
        check,
        EXPERTS * spec.nbytes + 3 * rows.nbytes,
        tokens * ROUTES * 6.0 * HIDDEN * INNER,
    )


def cases() -> Iterator[Case]:
    for storage in ("bfloat16", "fp8_block", "nvfp4"):
        for rows_x in (1, 8):
            yield _linear(storage, 12288, 2048, rows_x)
            yield _linear(storage, 2048, 4096, rows_x)
        yield _linear(storage, 12288, 2048, 8192)
        yield _linear(storage, 2048, 4096, 8192)
    # All of a gated delta layer's input projections, and an attention layer's, of one token.
    yield _linear("bfloat16", 12352, 2048, 1)
    yield _linear("bfloat16", 9216, 2048, 1)
    yield _linear("bfloat16", 151936, 2048, 1)
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4"):
        spec = blob_spec(storage, HIDDEN, INNER)
        bank = random_bank(spec, 1024)
        for tokens in (1, 4, 8):
            yield _decode(storage, tokens, bank, spec)
        yield _prefill(storage, 8192, bank[:EXPERTS], spec)
        del bank
