"""Which experts have slots, layer by layer, as rows of a picture and as words."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from app.core import units


class _Layer(msgspec.Struct, frozen=True):
    layer: int
    resident: tuple[int, ...]


class _Answer(msgspec.Struct, frozen=True):
    experts: int = 0
    layers: tuple[_Layer, ...] = ()


@dataclass(frozen=True)
class ResidencyView:
    """Rows are MoE layers in order; `resident` has the experts of each that have a slot."""

    experts: int = 0
    """Experts a layer."""
    layers: tuple[int, ...] = ()
    """The layers' numbers in the model; dense layers have none here."""
    resident: tuple[tuple[int, ...], ...] = ()

    def picture(self) -> bytes:
        """A byte an expert, row by row: 255 where it has a slot, else 0."""
        rows = []
        for resident in self.resident:
            row = bytearray(self.experts)
            for expert in resident:
                row[expert] = 255
            rows.append(row)
        return b"".join(rows)

    def bin_experts(self, at: int, bins: int) -> range:
        """The experts of one bin."""
        return range(-(-at * self.experts // bins), -(-(at + 1) * self.experts // bins))

    def describe(self) -> str:
        """All layers in one sentence."""
        if not self.layers:
            return "Nothing is known yet."
        held = sum(map(len, self.resident))
        total = self.experts * len(self.layers)
        return (
            f"{units.count(held)} of {units.count(total)} experts in"
            f" {units.counted(len(self.layers), 'layer')} have a slot."
        )

    def describe_row(self, row: int) -> str:
        held = len(self.resident[row])
        share = units.percent(held / self.experts)
        return (
            f"Layer {self.layers[row]}: {units.count(held)} of {units.count(self.experts)}"
            f" experts have a slot ({share})."
        )

    def describe_bin(self, row: int, at: int, bins: int) -> str:
        experts = self.bin_experts(at, bins)
        if len(experts) == 1:
            words = "has a slot" if experts[0] in self.resident[row] else "has none"
            return f"Expert {experts[0]} {words}."
        held = sum(expert in self.resident[row] for expert in experts)
        return f"Of experts {experts[0]} to {experts[-1]}, {held} of {len(experts)} have one."


def parse(body: bytes) -> ResidencyView:
    """The answer of /v1/engine/residency. Raises ValueError for what is none."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no residency: {error}") from None
    if not answer.experts:
        return ResidencyView()
    for layer in answer.layers:
        if layer.resident and not 0 <= min(layer.resident) <= max(layer.resident) < answer.experts:
            raise ValueError(f"layer {layer.layer} names an expert beyond {answer.experts - 1}")
    return ResidencyView(
        answer.experts,
        tuple(layer.layer for layer in answer.layers),
        tuple(layer.resident for layer in answer.layers),
    )
