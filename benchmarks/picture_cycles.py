"""An image model's denoising step on a TPU that is not here, by the TPU compiler's own cost model, beside the floor.

    python -m benchmarks.picture_cycles --image-model FOLDER --topology v5e:1x1 [--image-quantize int8]

Needs libtpu, on x86-64 Linux; no TPU. One JSON line. Attention's kernel counts as long as its products or bytes take at
least. What else the estimate leaves out is in docs/notes/tpu.md.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence

from benchmarks.collectives import collectives
from hfjax_app.planning import cycles
from hfjax_app.runtime import topology
from hfjax_app.runtime.mesh import picture_parts
from hfjax_app.runtime.process import prepare


def attention_cost(operands: Sequence[tuple[int, ...]]) -> cycles.KernelCost:
    """Of splash attention: query, key and value are [batch, heads, tokens, width], without a batch of one."""
    query, key, value = operands
    result = (*query[:-1], value[-1])
    return cycles.KernelCost(
        bytes_read=2 * sum(map(math.prod, (query, key, value, result))),
        operations=2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-model", required=True, help="a folder with a model_index.json")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--image-quantize", default="none")
    options = parser.parse_args()
    where = topology.parse(options.topology)
    topology.prepare_process(where)
    prepare(None)
    from hfjax_app.images.networks import Storage  # after the environment is set, because it imports jax
    from hfjax_app.images.plan import ImagePlanner, Uncompiled
    from hfjax_app.planning.outlook import device_seconds
    from hfjax_app.runtime.programs import Programs

    planner = ImagePlanner(options.image_model, storage=Storage(dtype="bfloat16", quantize=options.image_quantize))
    mesh = planner.mesh(topology.devices(where))
    began = time.perf_counter()
    specs = planner.specs(Uncompiled(mesh=mesh, planned=True))
    made_s = time.perf_counter() - began
    [spec] = [spec for spec in specs if spec.name in ("denoise", "denoise_alone")][-1:]
    programs = Programs(mesh=mesh, planned=True)
    program = programs.compile(spec.name, spec.function, *spec.args, donate=spec.donate, shardings=spec.shardings)
    [report], chip = programs.reports, where.name.partition(":")[0]
    text = program.as_text() or ""
    step = cycles.seconds(cycles.estimate(text, chip=chip, kernel=attention_cost).step, chip)
    counts, sizes = collectives(text)
    sharing = math.prod(picture_parts(where.devices, planner.weights, where.usable))
    floor = device_seconds(where, planner.held(where.devices, where.usable)[planner.denoiser], planner.work / sharing)
    row = {
        "name": spec.name,
        "step_ms": round(step * 1e3, 2),
        "floor_ms": round(floor * 1e3, 2),
        "ratio": round(max(step, floor) / floor, 2),
        "collectives": dict(counts),
        "exchanged_mib": {kind: size >> 20 for kind, size in sizes.items()},
        "arguments_mib": report.arguments >> 20,
        "temporary_mib": report.temporary >> 20,
        "encoders_traced_s": round(made_s, 1),
        "traced_s": round(report.traced, 1),
        "compiled_s": round(report.compiling, 1),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
