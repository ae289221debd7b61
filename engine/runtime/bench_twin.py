"""The same model in transformers, its weights dequantised: what Headrace is measured beside.

transformers is no dependency of the engine: it is imported in here only, when a benchmark asks.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import time
from typing import Any

import torch

from engine.errors import UnsupportedModel
from engine.formats.checkpoint import Checkpoint
from engine.kernels.dequantise import dequantise
from engine.models.registry import describe, expert_tensors, family_of
from engine.models.spec import ModelSpec

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)")


def transformers_version() -> str:
    """Empty where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return ""
    import transformers

    return str(transformers.__version__)


class Twin:
    """A transformers model of the checkpoint, in `dtype` on `device`."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        """Raises UnsupportedModel for a GGUF file, which transformers would read in its own way."""
        if checkpoint.kind == "gguf":
            raise UnsupportedModel(f"{checkpoint.path}: no transformers twin is made of GGUF files")
        self._device = device
        spec = describe(checkpoint)
        view = family_of(checkpoint).view(checkpoint)
        self._model = _empty_model(checkpoint.config, dtype)
        with torch.no_grad():
            # Parameter by parameter: beside the twin only one dequantised tensor exists at a time.
            for name, parameter in self._model.named_parameters():
                parameter.copy_(_tensor(name, spec, view, checkpoint, dtype))
        self._model.eval().to(device)
        # Releases differ in what they call it, as an argument and in the output alike.
        accepted = inspect.signature(self._model.forward).parameters
        self._cache = "cache" if "cache" in accepted else "past_key_values"

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """float32 [tokens, vocab]: the logits after each of the tokens, in one pass."""
        out = self._model(input_ids=torch.tensor([tokens], device=self._device))
        rows: torch.Tensor = out.logits[0].to(torch.float32)
        return rows

    @torch.inference_mode()
    def decode(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        """Greedy `tokens` after the prompt, and tokens a second from the first to the last one.

        The bare loop, without `generate`: its bookkeeping is not what is compared.
        """
        ids = torch.tensor([prompt], device=self._device)
        out = self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = int(out.logits[0, -1].argmax())
        produced = [token]
        begin = time.perf_counter()
        for _ in range(tokens - 1):
            ids = torch.tensor([[token]], device=self._device)
            cache = {self._cache: getattr(out, self._cache)}
            out = self._model(input_ids=ids, use_cache=True, **cache)
            token = int(out.logits[0, -1].argmax())
            produced.append(token)
        return produced, (tokens - 1) / (time.perf_counter() - begin)


def _empty_model(config: dict[str, Any], dtype: torch.dtype) -> Any:
    import transformers
    from transformers.initialization import no_init_weights

    text = config.get("text_config", config)
    fields = {k: v for k, v in text.items() if k not in ("model_type", "quantization_config")}
    made = transformers.AutoConfig.for_model(text["model_type"], **fields)
    with no_init_weights():
        model: Any = transformers.AutoModelForCausalLM
        empty = model.from_config(made, dtype=dtype)
    # Skipping the first values skips this too: an output layer that is the embedding.
    empty.tie_weights()
    return empty


def _tensor(
    name: str, spec: ModelSpec, view: Checkpoint, checkpoint: Checkpoint, dtype: torch.dtype
) -> torch.Tensor:
    experts = _EXPERTS.fullmatch(name)
    if experts is None:
        if not name.endswith(".weight") or len(view.info(name).shape) < 2:
            return view.read(name)
        if len(view.info(name).shape) > 2:
            return view.read(name)
        return dequantise(view.weight(name.removesuffix(".weight")), dtype)
    matrices = []
    for expert in expert_tensors(spec, checkpoint, int(experts[1])):
        if experts[2] == "down_proj":
            matrices.append(dequantise(expert.down, dtype))
        else:
            both = [dequantise(expert.gate, dtype), dequantise(expert.up, dtype)]
            matrices.append(torch.cat(both))
    return torch.stack(matrices)
