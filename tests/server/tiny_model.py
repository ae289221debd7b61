"""A random Qwen2-MoE of a few kilobytes with a real tokenizer, for tests of everything around it.

Written by transformers and tokenizers, so that nothing of the engine judges itself.
"""

from __future__ import annotations

import json
from pathlib import Path

CONTEXT = 4096
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = [
    "The quick brown fox jumps over the lazy dog. Say ok. You are terse. hello world",
    "user assistant system one two three four five six seven eight nine ten",
    "A headrace is the channel that carries water from the reservoir to the turbine.",
]


def write_tokenizer(folder: Path) -> int:
    """A byte-level BPE in the hub's files. Returns its vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    return int(tokenizer.get_vocab_size())


def write_tiny_model(folder: Path) -> Path:
    """A whole model's folder: weights, configs, tokenizer."""
    import torch
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocab = write_tokenizer(folder)
    torch.manual_seed(7)
    config = Qwen2MoeConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=CONTEXT,
        # Special tokens are at the vocabulary's start.
        bos_token_id=0,
        eos_token_id=2,
    )
    model = Qwen2MoeForCausalLM(config)
    model.generation_config.eos_token_id = [2, 0]
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    print(write_tiny_model(Path(sys.argv[1])))
