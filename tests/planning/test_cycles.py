"""Estimates of the TPU's compiler: how a program's text is read, and what they say of the parts that decide a step.

Parts in `make test`, for which no model is needed; whole models, minutes each, in `make test-tpu`.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import LlamaConfig

from hfjax_app.errors import RequestRejected
from hfjax_app.planning.cycles import CLOCKS, Cycles, KernelCost, estimate
from hfjax_app.runtime.topology import CHIPS
from tests.planning.test_plan import LAYERS, config_of

ROOT = Path(__file__).parents[2]
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

TEXT = """
%fused (a: f32[8]) -> f32[8] {
  ROOT %x = f32[8]{0} add(%a, %a)
}

%counted (t: (s32[], f32[8])) -> pred[] {
  %eight = s32[]{:T(128)} constant(8)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %eight), direction=LT
}

%inner (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %y = f32[8]{0} fusion(%t), calls=%fused, backend_config={"estimated_cycles":"10"}
}

%asked (t: (s32[], s32[])) -> pred[] {
  ROOT %less.2 = pred[]{:T(512)} compare(%i.2, %steps), direction=LT
}

%step (t: (s32[], s32[])) -> (s32[], s32[]) {
  %z = f32[8]{0} fusion(%t), calls=%fused, backend_config={"estimated_cycles":"100"}
  %rows = (s32[], f32[8]) while(%t), condition=%counted, body=%inner
KERNEL}

ENTRY %main (a: f32[8]) -> f32[8] {
  %w = f32[8]{0} fusion(%a), calls=%fused, backend_config={"estimated_cycles":"7"}
  %steps = (s32[], s32[]) while(%w), condition=%asked, body=%step
}
"""
KERNEL = (
    '  %k = bf16[8]{0} custom-call(%z, %y), custom_call_target="tpu_custom_call",'
    " operand_layout_constraints={s8[1,8]{1,0}, bf16[2,24,4608,128]{3,2,1,0}}, frontend_attributes={a={b}}\n"
)

SCRIPT = """
import json
from hfjax_app.planning import cycles
from hfjax_app.runtime import topology
where = topology.parse("v5e:1x1")
topology.prepare_process(where)
from hfjax_app.runtime.process import prepare
prepare(None)
import jax, jax.numpy as jnp
from functools import partial
from jax.sharding import NamedSharding, PartitionSpec
from hfjax_app.chat.model.kv_cache import write
from hfjax_app.runtime.attention import grouped_query_attention
from hfjax_app.runtime.cpu.linear import linear
from hfjax_app.runtime.mesh import mesh_of

there = NamedSharding(mesh_of(topology.devices(where)), PartitionSpec())
def shape(*size, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(size, dtype, sharding=there)
def show(function, *args, donate=()):
    program = jax.jit(function, donate_argnums=donate).lower(*args).compile()
    estimate = cycles.estimate(program.as_text(), chip="v5e")
    print(json.dumps([cycles.seconds(estimate.outside, "v5e"), program.memory_analysis().temp_size_in_bytes]))
number = shape(dtype=jnp.int32)
show(linear, shape(1, 2048), shape(32064, 2048))
show(jax.vmap(linear, (0, None)), shape(1, 1, 2048), shape(32064, 2048))
show(write, shape(8, 4, 2048, 128), shape(4, 256, 128), number, number, number, donate=(0,))
keys = shape(1, 8, 2048, 64)
show(partial(grouped_query_attention, scaling=0.125), shape(1, 32, 512, 64), keys, keys,
     shape(1, 1, 512, 2048, dtype=jnp.bool_))
"""

PREFILL = """
import sys
from hfjax_app.runtime import topology
where = topology.parse("v5e:1x1")
topology.prepare_process(where)
from hfjax_app.runtime.process import prepare
prepare(None)
from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.runtime.programs import Programs

planner = ChatPlanner(sys.argv[1], slots=8, context=2048, dtype="bfloat16", quantize="none")
programs = Programs(mesh=planner.mesh(topology.devices(where)), planned=True)
[spec] = [spec for spec in planner.specs(programs) if spec.name == "chat_prefill_256x2048"]
options = {"donate": spec.donate, "shardings": spec.shardings}
print(programs.compile(spec.name, spec.function, *spec.args, **options).as_text())
"""


def test_loops_of_known_length_are_counted_and_the_others_are_steps() -> None:
    assert estimate(TEXT.replace("KERNEL", ""), chip="v5e") == Cycles(outside=7, steps=(180,))


def test_a_kernel_without_an_estimate_needs_stated_figures() -> None:
    text = TEXT.replace("KERNEL", KERNEL)
    with pytest.raises(RequestRejected, match="no estimate for the kernel 'tpu_custom_call': state the bytes"):
        estimate(text, chip="v5e")
    chip = CHIPS["v5e"]

    def cost(operands: Sequence[tuple[int, ...]]) -> KernelCost:
        assert operands == [(2, 24, 4608, 128)]
        return KernelCost(bytes_read=chip.bandwidth * 2e-6, operations=chip.flops * 1e-6)

    assert estimate(text, chip="v5e", kernel=cost).step == 180 + round(CLOCKS["v5e"] * 2e-6)
    with pytest.raises(RequestRejected, match="not compiled for a TPU"):
        estimate("HloModule jit_f", chip="v5e")


@needs_libtpu
@pytest.mark.timeout(600)
def test_what_a_step_consists_of_is_near_its_floor() -> None:
    """An output layer's lone row, alone and under vmap; 256 rows of a cache; scores that need no memory.

    A lone row that is not padded takes 610 us, and all scores at once, 134 MB, take 1,500 us. In a
    model, a select over a slot's whole array takes 120 us.
    """
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lone, mapped, rows, attention = map(json.loads, result.stdout.splitlines())
    floor = 32064 * 2048 * 2 / CHIPS["v5e"].bandwidth
    assert lone[0] < 2 * floor
    assert mapped[0] < 2 * floor
    assert rows[0] < 40e-6
    assert attention[0] < 500e-6
    assert attention[1] < 8 << 20


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(600)
def test_a_prefill_writes_its_rows_in_place(tmp_path: Path) -> None:
    """256 rows of each layer's keys and values, and no array as long as a slot's by a select."""
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=1024,
        intermediate_size=2048,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=4096,
        max_position_embeddings=4096,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    command = [sys.executable, "-c", PREFILL, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    whole = re.compile(r"= bf16\[(8,|1,)?4,2048,128\]\S* (select|dynamic-update-slice)\(")
    written = [match[2] for line in lines if (match := whole.search(line))]
    assert written == ["dynamic-update-slice"] * 4


@needs_libtpu
@pytest.mark.tpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "topology", "size", "quantize", "decode", "prefill"),
    [
        ("llama-3.2-1b", "v5e:1x1", (8, 2048), "none", 1.1, 3.0),
        ("llama-3.2-1b", "v5e:1x1", (8, 2048), "int8", 1.7, 3.0),
        ("llama-3.1-8b", "v5e:2x4", (8, 2048), "none", 1.1, 3.4),
        ("llama-3.1-8b", "v5e:2x4", (8, 2048), "int8", 2.2, 3.3),
        ("gemma-3-1b", "v6e:1x1", (4, 1024), "none", 2.0, 3.0),
        ("gemma-3-1b", "v6e:1x1", (4, 1024), "int8", 3.7, 4.8),
        ("gemma-3-4b", "v6e:1x1", (8, 2048), "none", 1.3, 2.4),
        ("gemma-3-4b", "v6e:1x1", (8, 2048), "int8", 1.7, 3.2),
    ],
)
def test_whole_models_are_near_their_floors(
    name: str, topology: str, size: tuple[int, int], quantize: str, decode: float, prefill: float, tmp_path: Path
) -> None:
    """Ratios to the floor of docs/notes/tpu.md, the numbers of programs, and temporaries below 5 % of the chip."""
    slots, context = map(str, size)
    config_of(name, LAYERS.get(name, 34)).save_pretrained(tmp_path)
    options = ["--slots", slots, "--context", context, "--quantize", quantize]
    options += ["--only", f"decode_{slots}x{context}|prefill_512"]
    command = ["-m", "benchmarks.tpu_cycles", "--chat-model", str(tmp_path), "--topology", topology, *options]
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    programs, *rows = map(json.loads, result.stdout.splitlines())
    assert len(programs["programs"]) <= 12
    assert programs["before the first user"] <= 8
    assert [row["name"].split("_")[1] for row in rows] == ["decode", "prefill"]
    for row, ratio in zip(rows, (decode, prefill), strict=True):
        assert row["ratio"] <= ratio
        assert row["temporary_mib"] << 20 < CHIPS[topology[:3]].hbm * 0.05
