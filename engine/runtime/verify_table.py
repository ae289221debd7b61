"""What `headrace verify` found: rows of the record, and a table for people."""

from __future__ import annotations

from dataclasses import dataclass

from engine.runtime.bench_result import Result, Row
from engine.runtime.verify_figures import Figures
from engine.runtime.verify_steps import Replayed

_VERSUS = "float32 reference"
_COLUMNS = (
    "max error",
    "rel. error",
    "KL mean",
    "KL max",
    "top-1",
    "perplexity",
    "change",
)


@dataclass(frozen=True)
class Outcome:
    """Of one setting."""

    name: str
    figures: Figures | None
    """None for steps without a text."""
    base: str = ""
    """The setting whose bits these must be, "" for a group's first."""
    apart: int = 0
    """Steps whose bits are not."""
    replayed: Replayed | None = None


def rows(reference: Figures, outcomes: list[Outcome]) -> list[Row]:
    """Of the record: each figure of each setting by its name."""
    found = [Row(name="reference perplexity", value=reference.perplexity, unit="")]
    for outcome in outcomes:
        name, figures = outcome.name, outcome.figures
        if figures is not None:
            found += [
                Row(name=f"{name} max error", value=figures.error, unit="", versus=_VERSUS),
                Row(name=f"{name} relative error", value=figures.relative, unit="", versus=_VERSUS),
                Row(
                    name=f"{name} KL mean",
                    value=figures.divergence,
                    unit="nats/tok",
                    versus=_VERSUS,
                ),
                Row(
                    name=f"{name} KL max",
                    value=figures.worst_divergence,
                    unit="nats/tok",
                    versus=_VERSUS,
                ),
                Row(name=f"{name} top-1", value=figures.agreement, unit="share", versus=_VERSUS),
                Row(
                    name=f"{name} perplexity",
                    value=figures.perplexity,
                    unit="",
                    versus=_VERSUS,
                    ratio=figures.perplexity / reference.perplexity,
                ),
            ]
        if outcome.base:
            unit = "steps" if outcome.replayed is None else f"of {outcome.replayed.steps} steps"
            found.append(
                Row(name=f"{name} apart", value=outcome.apart, unit=unit, versus=outcome.base)
            )
    return found


def table(result: Result, reference: Figures, outcomes: list[Outcome]) -> str:
    """A line for each setting, under a line about the machine."""
    facts = result.machine
    head = f"{result.bench}: {result.model}, {facts.gpu or facts.host}, {facts.threads} threads"
    lines: list[tuple[str, ...]] = [("", *_COLUMNS, "bits")]
    lines.append(("reference", "", "", "", "", "", f"{reference.perplexity:.4f}", "", ""))
    for outcome in outcomes:
        lines.append((outcome.name, *_figures(outcome.figures, reference), _bits(outcome)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
            + [line[-1]]
        ).rstrip()
        for line in lines
    ]
    return "\n".join([head, *(f"  {line}" for line in [*shown, *result.notes])])


def _figures(figures: Figures | None, reference: Figures) -> tuple[str, ...]:
    if figures is None:
        return ("",) * len(_COLUMNS)
    return (
        f"{figures.error:.2e}",
        f"{figures.relative:.2e}",
        f"{figures.divergence:.2e}",
        f"{figures.worst_divergence:.2e}",
        f"{figures.agreement:.1%}",
        f"{figures.perplexity:.4f}",
        f"{figures.perplexity - reference.perplexity:+.1e}",
    )


def _bits(outcome: Outcome) -> str:
    if not outcome.base:
        return ""
    if outcome.apart:
        return f"NOT {outcome.base}: {outcome.apart} steps differ"
    if outcome.replayed is not None:
        counted = f"{outcome.replayed.steps} steps, {outcome.replayed.captured} captured"
        return f"= {outcome.base}, {counted}"
    return f"= {outcome.base}"
