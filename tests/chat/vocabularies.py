"""Small tokenizers of the kinds that models have, made with the tokenizers library."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = [
    "The quick brown fox jumps over the lazy dog; it's 1234 o'clock, we'll see.",
    "Ďábel 聪明 naïve café — « été » 👩‍🚀🏳️‍🌈\n\n  indented\tcode()\r\n",
]


def byte_level(pre: pre_tokenizers.PreTokenizer | None = None, vocab_size: int = 420) -> Tokenizer:
    """As GPT-2 and most models since: every byte sequence has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Gemma: SentencePiece pieces, and a token for every single byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            [],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = Normalizers([Prepend("\u2581"), Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """As Mistral: a space in front of the text's first word only, and control tokens that strip."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    special = [
        "<unk>",
        AddedToken("<|im_start|>", rstrip=True, special=True),
        AddedToken("<|im_end|>", lstrip=True, rstrip=True, special=True),
        AddedToken("<|endoftext|>", special=True),
    ]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*TEXT * 4, "hello ", "".join(SPECIAL)], trainer)
    return tokenizer
