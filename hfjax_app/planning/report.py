"""A plan as text for people and as JSON for programs. Says which figures are the compiler's and which arithmetic."""

from dataclasses import asdict
from typing import Any

from hfjax_app.chat.plan import ChatPlan
from hfjax_app.planning.topology import MARGIN, Topology
from hfjax_app.planning.verdict import Advice, Floor, Footprint

GIB = 1 << 30


def footprint_of(plan: ChatPlan) -> Footprint:
    """Arguments and temporaries are the compiler's; its arguments hold the padding of the chip's layouts."""
    return Footprint(
        weights=plan.need.weights,
        cache=plan.need.cache,
        per_slot_token=plan.need.per_slot_token,
        resident=max(program.arguments for program in plan.programs),
        temporary=max(program.temporary for program in plan.programs),
    )


def as_json(plan: ChatPlan, topology: Topology, advice: Advice | None, floor: Floor | None) -> dict[str, Any]:
    footprint = footprint_of(plan)
    return {
        "topology": topology.name,
        "chips": topology.devices,
        "usable_bytes_per_chip": topology.usable,
        "chat": asdict(plan),
        "peak_bytes_per_chip": footprint.peak,
        "fits": None if topology.usable is None else advice is None,
        "advice": None if advice is None else asdict(advice),
        "decode_floor": None
        if floor is None
        else {**asdict(floor), "tokens_per_s_per_user": floor.per_user, "tokens_per_s_in_all": floor.in_all},
    }


def as_text(plan: ChatPlan, topology: Topology, advice: Advice | None, floor: Floor | None) -> str:
    footprint = footprint_of(plan)
    ends = ", ".join(map(str, plan.end_tokens)) or "none: answers end at max tokens"
    lines = [
        f"{plan.architecture}: supported; {plan.parameters / 1e9:.2f} G parameters, {plan.dtype}",
        f"chat template: {'yes' if plan.has_template else 'none, messages are text to continue'}; end tokens: {ends}",
        "",
        f"{'on each device':34}{'arguments':>12}{'temporary':>12}{'in place':>12}{'compiled':>12}",
    ]
    lines += [
        f"{program.name:34}{_size(program.arguments):>12}{_size(program.temporary):>12}{_size(program.in_place):>12}"
        f"{program.seconds:>10.1f} s"
        for program in plan.programs
    ]
    lines += [
        "",
        f"weights {_size(plan.need.weights)}, KV cache {_size(plan.need.cache)}, with padding and temporaries "
        f"{_size(footprint.peak)}",
    ]
    if topology.chip is not None:
        lines.append(
            f"{topology.name}: {_size(topology.chip.hbm)} HBM a chip, {_size(topology.usable)} usable (margin "
            f"{MARGIN:.0%}): " + ("fits" if advice is None else f"does not fit; would fit: {advice}")
        )
    if floor is not None:
        lines.append(
            f"decode floor: {floor.bytes_read / 1e9:.2f} GB read for a step: {floor.seconds * 1e3:.2f} ms, "
            f"{floor.per_user:.0f} tokens/s for each of {floor.slots} users, {floor.in_all:.0f} in all"
        )
    lines.append(
        "The table's figures are the compiler's; weights, KV cache, advice and floor (bytes / published bandwidth) are "
        "arithmetic."
    )
    return "\n".join(lines)


def _size(count: int) -> str:
    return f"{count / GIB:.3f} GiB"
