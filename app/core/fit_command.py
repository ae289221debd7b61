"""`headrace fit`: does a model fit this PC, and how fast would it be?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.core import fit_words, units
from app.core.catalog import catalog
from app.core.downloads import process
from app.core.downloads.records import LookUp, Request
from app.core.settings import DEMO, model_path
from engine import paths
from engine.errors import HeadraceError, ModelNotFound
from engine.formats.model_files import inspect_model
from engine.memory.fit import Fit, fit
from engine.memory.model_facts import ModelFacts
from engine.memory.pc import Pc, this_pc, with_figures
from engine.models.facts import facts_of_config, facts_of_files
from engine.options import EngineOptions

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130
CONFIGS = ("config.json", "hf_quant_config.json")
_DESCRIPTION = (
    "Estimates whether a model fits this PC and how fast it would be, before it is downloaded. "
    "Without a model: all of the catalog. Nothing is refused by it."
)
_EPILOG = """\
Examples: headrace fit
          headrace fit Qwen/Qwen3-30B-A3B-Instruct-2507-FP8
          headrace fit ~/models/mine --vram 8 --ram 32

Figures of another PC can be given. `headrace bench host` and `headrace bench link` measure this
one's rates, which are kept; until then low ones are assumed, and the table says so.
"""


@dataclass(frozen=True)
class Candidate:
    name: str
    facts: ModelFacts


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 typed error, 2 usage, 130 Ctrl-C."""
    options = parser().parse_args(argv)
    try:
        return _run(options)
    except HeadraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_ERROR


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="headrace fit",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "model",
        nargs="?",
        metavar="MODEL",
        help="folder in the hub's layout, GGUF file, `demo`, a name of the catalog, or a "
        "repository `organisation/name`, of which the hub is asked",
    )
    add("--json", action="store_true", help="print one JSON object")
    add("--vram", type=_amount, metavar="GB", help="GPU memory, all of it free; 0: no GPU")
    add("--ram", type=_amount, metavar="GB", help="host memory, all of it free")
    add("--link", type=_amount, metavar="GB/S", help="from host memory to the GPU")
    add("--host", type=_amount, metavar="GB/S", help="reading host memory")
    add("--context", type=int, default=0, metavar="N", help="tokens; 0: what fits (%(default)s)")
    return made


def _amount(text: str) -> float:
    """In units of 10^9."""
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no such amount")
    return value * 1e9


def _run(options: argparse.Namespace) -> int:
    found = [candidate(options.model)] if options.model else _catalogued()
    pc = with_figures(
        this_pc(with_gpu=options.vram is None),
        vram=options.vram,
        ram=options.ram,
        link=options.link,
        host=options.host,
    )
    fits = [(one, estimate(one.facts, pc, context_tokens=options.context)) for one in found]
    if options.json:
        print(json.dumps(_record(pc, fits), indent=2))
        return 0
    print(f"This PC: {fit_words.machine(pc)}\n         {fit_words.rates(pc)}\n")
    if options.model:
        _print_one(*fits[0])
    else:
        _print_all(fits)
    return 0


def estimate(facts: ModelFacts, pc: Pc, *, context_tokens: int = 0) -> Fit:
    """With the engine's own defaults; a context beyond the model's limit is cut to it."""
    context = min(context_tokens, facts.spec.context_tokens)
    return fit(facts, pc, EngineOptions(model="", context_tokens=context))


def candidate(text: str) -> Candidate:
    """The model that a person means. Raises what reading it, or asking the hub, raises."""
    if text == DEMO:
        return Candidate(DEMO, facts_of_files(inspect_model(paths.demo_model())))
    if entry := catalog().find(text):
        return Candidate(entry.name, catalog().facts(entry))
    path = model_path(text) or Path(text)
    if path.exists() or not _is_repository(text):
        files = inspect_model(path)
        return Candidate(files.display_name, facts_of_files(files))
    planned = process.look_up(LookUp(request=Request(repo=text), read=CONFIGS))
    return Candidate(text, facts_of_texts(text, planned.texts))


def facts_of_texts(repo: str, texts: dict[str, str]) -> ModelFacts:
    """Of a repository's small files by name. Raises ModelNotFound without a config.json."""
    if CONFIGS[0] not in texts:
        raise ModelNotFound(
            f"{repo} has no {CONFIGS[0]}, so its shape is not known before it is downloaded.",
        )
    values = [json.loads(texts.get(name) or "{}") for name in CONFIGS]
    return facts_of_config(values[0], f"{repo}/{CONFIGS[0]}", values[1])


def _is_repository(text: str) -> bool:
    parts = text.split("/")
    return len(parts) == 2 and all(parts) and not text.startswith((".", "~", "/"))


def _catalogued() -> list[Candidate]:
    return [Candidate(entry.name, catalog().facts(entry)) for entry in catalog().models]


def _print_one(one: Candidate, found: Fit) -> None:
    spec = one.facts.spec
    weights = units.storage(one.facts.weight_bytes)
    print(f"{one.name}: {spec.family}, {one.facts.format}, {weights} of weights")
    print(f"{fit_words.badge(found).text}. This is an estimate.\n")
    lines = fit_words.details(found)
    width = max(len(name) for name, _ in lines)
    for name, words in lines:
        print(f"  {name:<{width}}  {words}")
    for note in found.notes:
        print(f"  {note}")


def _print_all(fits: list[tuple[Candidate, Fit]]) -> None:
    width = max(len(one.name) for one, _ in fits)
    for one, found in fits:
        weights = units.storage(one.facts.weight_bytes)
        print(f"  {one.name:<{width}}  {weights:>8}  {fit_words.badge(found).text}")
    print("\nThese are estimates. `headrace fit NAME` tells more of one.")


def _record(pc: Pc, fits: list[tuple[Candidate, Fit]]) -> dict[str, Any]:
    """Sizes in bytes, rates per second."""
    models = []
    for one, found in fits:
        values = asdict(found)
        values.pop("budget")
        context = found.budget.context_tokens if found.budget is not None else None
        own = {"name": one.name, "weight_bytes": one.facts.weight_bytes, "context_tokens": context}
        models.append(own | values)
    return {"estimate": True, "pc": asdict(pc), "models": models}
