"""A chat model's times on a TPU that is not here, by the TPU compiler's own cost model, beside the floor.

    python -m benchmarks.tpu_cycles --chat-model FOLDER --topology v5e:1x1 --slots 8 --context 2048 [--only decode]

Needs libtpu, on x86-64 Linux; no TPU. One JSON line for each program. What the estimate leaves out is in
docs/notes/tpu.md.
"""

import argparse
import json
import re
from typing import Any

from hfjax_app.planning import cycles
from hfjax_app.planning.outlook import decode_floor, prefill_floor
from hfjax_app.runtime import topology
from hfjax_app.runtime.process import prepare

_DECODE = re.compile(r"chat_decode_(\d+)x(\d+)")
_PREFILL = re.compile(r"chat_prefill_(\d+)x(\d+)")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat-model", required=True, help="a folder with a config.json")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--only", default="", help="a regular expression: programs whose name has it")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    where = topology.parse(options.topology)
    topology.prepare_process(where)
    prepare(None)
    from hfjax_app.chat.plan import ChatPlanner  # after the environment is set, because it imports jax
    from hfjax_app.runtime.programs import Programs

    size = {"slots": options.slots, "context": options.context}
    planner = ChatPlanner(options.chat_model, dtype="bfloat16", quantize=options.quantize, **size)
    programs = Programs(mesh=planner.mesh(topology.devices(where)), planned=True)
    specs = planner.specs(programs)
    print(
        json.dumps({"programs": [spec.name for spec in specs], "before the first user": sum(s.general for s in specs)})
    )
    for spec in specs:
        if re.search(options.only, spec.name):
            program = programs.compile(
                spec.name, spec.function, *spec.args, donate=spec.donate, shardings=spec.shardings
            )
            print(json.dumps(row(planner, where, spec.name, program.as_text(), programs.reports[-1])), flush=True)


def row(planner: Any, where: topology.Topology, name: str, text: str, report: Any) -> dict[str, Any]:
    """Milliseconds of a step (of a call, where it has no loop over steps), the floor, and their ratio."""
    chip = where.name.partition(":")[0]
    estimate, use = cycles.estimate(text, chip=chip), planner.use(where.devices)
    cache = planner.estimate(where.devices).slot
    floor = None
    if match := _DECODE.fullmatch(name):
        sizes = {"slots": int(match[1]), "length": int(match[2]), "context": planner.options.context}
        floor = decode_floor(use, cache, where, **sizes).seconds
    elif match := _PREFILL.fullmatch(name):
        floor = prefill_floor(use, where, int(match[1]))
    step = cycles.seconds(estimate.step, chip)
    return {
        "name": name,
        "step_ms": round(step * 1e3, 3),
        "outside_ms": round(cycles.seconds(estimate.outside, chip) * 1e3, 3),
        "floor_ms": floor and round(floor * 1e3, 3),
        "ratio": floor and round(max(step, floor) / floor, 2),
        "temporary_mib": report.temporary >> 20,
        "compiled_s": round(report.seconds),
    }


if __name__ == "__main__":
    main()
