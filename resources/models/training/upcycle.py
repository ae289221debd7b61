"""The student's first weights, cut out of the teacher: every few layers, its neurons as experts."""

from __future__ import annotations

import torch
from student import Shape, Student
from teacher import Teacher
from torch import Tensor


def source_layers(student: int, teacher: int) -> list[int]:
    """The teacher layer each student layer starts from: evenly spread, both ends included."""
    if student == 1:
        return [0]
    return [round(i * (teacher - 1) / (student - 1)) for i in range(student)]


def tap_layers(student: int, teacher: int) -> list[int]:
    """The teacher layer whose output each student layer should reproduce."""
    return [round((i + 1) * teacher / student) - 1 for i in range(student)]


def balanced_clusters(rows: Tensor, count: int, rounds: int = 8) -> Tensor:
    """Row numbers [count, rows / count]: equal clusters of rows that point in like directions."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    room = len(rows) // count
    centres = unit[torch.randperm(len(rows), device=rows.device)[:count]]
    members = torch.empty(0)
    for _ in range(rounds):
        likeness = (unit @ centres.T).cpu()
        # The most certain rows choose first; a full cluster takes no more.
        order = likeness.amax(1).argsort(descending=True)
        left = [room] * count
        lists: list[list[int]] = [[] for _ in range(count)]
        for row in order.tolist():
            for cluster in likeness[row].argsort(descending=True).tolist():
                if left[cluster]:
                    left[cluster] -= 1
                    lists[cluster].append(row)
                    break
        members = torch.tensor(lists, device=rows.device)
        centres = torch.nn.functional.normalize(unit[members].mean(1), dim=1)
    return members


@torch.no_grad()
def upcycle(student: Student, teacher: Teacher, to_teacher: Tensor) -> None:
    """Fill the student's parameters from the teacher's."""
    s: Shape = student.shape
    p = student.p
    p["embedding"].copy_(teacher.embedding[to_teacher].float())
    p["final_norm"].copy_(teacher.norm.float())
    for i, source in enumerate(source_layers(s.layers, len(teacher.layers))):
        norm, q, k, v, o, second, gate, up, down = (w.float() for w in teacher.layers[source])
        p["norm"][i], p["second_norm"][i] = norm, second
        p["q"][i], p["k"][i], p["v"][i], p["o"][i] = q, k, v, o
        # The neurons with the largest weights are shared; the next ones become experts.
        weight = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        order = weight.argsort(descending=True)
        shared = order[: s.shared_width]
        pool = order[s.shared_width : s.shared_width + s.experts * s.expert_width]
        p["shared_gate"][i], p["shared_up"][i] = gate[shared], up[shared]
        # The shared expert's switch starts half open, so its output starts twice as large.
        p["shared_down"][i] = down[:, shared] * 2
        members = pool[balanced_clusters(gate[pool], s.experts)]
        p["gate"][i], p["up"][i] = gate[members], up[members]
        # An active expert's gate is about 1 / active.
        p["down"][i] = down[:, members].transpose(0, 1) * s.active
        centres = torch.nn.functional.normalize(gate[members].mean(1), dim=1)
        p["router"][i] = centres * 0.1
