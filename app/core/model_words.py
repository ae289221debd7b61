"""Models in lists and dialogs: what they are called, what is said of them."""

from __future__ import annotations

from app.core import units
from app.core.catalog import Entry
from app.core.downloads.library import Deletion, Folder, Model, Standing
from app.core.downloads.records import Planned

_FORMATS = {
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
    "fp8_block": "FP8",
    "bfloat16": "16 bits",
    "float16": "16 bits",
    "float32": "32 bits",
}
_STANDINGS = {
    Standing.READY: "checked",
    Standing.FOREIGN: "not fetched by Headrace",
    Standing.PARTIAL: "incomplete",
    Standing.UNAVAILABLE: "not there now",
}


def format_name(storage: str) -> str:
    return _FORMATS.get(storage, f"GGUF {storage.upper()}")


def standing(model: Model) -> str:
    return _STANDINGS[model.standing]


def entry_tags(entry: Entry) -> list[str]:
    context = f"{entry.context_tokens // 1024}k context"
    return [format_name(entry.format), units.storage(entry.bytes.total), context, entry.licence]


def folder_words(folder: Folder) -> str:
    if not folder.available:
        return f"Not available: {folder.reason}"
    free = f"{units.storage(folder.free)} free on its disk"
    return f"{units.storage(folder.size)} of models, {free}"


def plan_words(planned: Planned) -> str:
    """What a download comes to: `22.0 GB in 7 files, 112 GB free`."""
    plan = planned.plan
    said = f"{units.storage(plan.total)} in {units.counted(len(plan.files), 'file')}"
    if planned.present:
        said += f", {units.storage(planned.present)} of it is here already"
    return f"{said}; {units.storage(planned.free)} are free there"


def disk_short(planned: Planned) -> int:
    """Bytes that the disk lacks for it; 0 where there is room."""
    return max(0, planned.plan.total - planned.present - planned.free)


def deletion_words(name: str, deletion: Deletion) -> str:
    said = f"{units.storage(deletion.freed)} become free. {name} can be downloaded again."
    if deletion.kept:
        said += f" {units.storage(deletion.kept)} of it stay, since other models use them."
    return said
