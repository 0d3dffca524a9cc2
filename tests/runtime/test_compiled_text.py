"""Figures from a program's text: steps that only move an array, in programs of XLA's compilers for CPU and TPU."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from hfjax_app.runtime.program_report import largest_move

WIDE = jax.ShapeDtypeStruct((256, 512), "float32")  # half a MiB

# Text from libtpu: a prefetch into the core's own memory (S(1)), a copy inside a fusion that computes, a fusion with
# several results, and in a loop's body, a conversion and a fusion that only transposes.
TPU = """
HloModule jit_decode, is_scheduled=true

%fused_computation.1 (param_0.1: bf16[64,32], param_1.1: bf16[64,32]) -> bf16[64,32] {
  %param_0.1 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  %copy.1 = bf16[64,32]{0,1:T(8,128)(2,1)} copy(%param_0.1)
  %param_1.1 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %add.1 = bf16[64,32]{1,0:T(8,128)(2,1)} add(%copy.1, %param_1.1)
}

%fused_computation.2 (param_0.2: bf16[64,32]) -> (f32[64,32], f32[64,32]) {
  %param_0.2 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  %convert.2 = f32[64,32]{1,0:T(8,128)} convert(%param_0.2)
  %negate.2 = f32[64,32]{1,0:T(8,128)} negate(%convert.2)
  ROOT %tuple.2 = (f32[64,32]{1,0:T(8,128)}, f32[64,32]{1,0:T(8,128)}) tuple(%convert.2, %negate.2)
}

%fused_computation.3 (param_0.3: bf16[16,32]) -> bf16[512] {
  %param_0.3 = bf16[16,32]{1,0:T(8,128)(2,1)} parameter(0)
  %transpose.3 = bf16[32,16]{1,0:T(8,128)(2,1)} transpose(%param_0.3), dimensions={1,0}
  ROOT %bitcast.3 = bf16[512]{0:T(1024)} bitcast(%transpose.3)
}

%body.4 (arg.4: (bf16[16,32], bf16[8])) -> (bf16[16,32], bf16[8]) {
  %arg.4 = (bf16[16,32]{1,0:T(8,128)(2,1)}, bf16[8]{0:T(256)}) parameter(0)
  %get-tuple-element.4 = bf16[16,32]{1,0:T(8,128)(2,1)} get-tuple-element(%arg.4), index=0
  %fusion.3 = bf16[512]{0:T(1024)} fusion(%get-tuple-element.4), kind=kLoop, calls=%fused_computation.3
  %get-tuple-element.5 = bf16[8]{0:T(256)} get-tuple-element(%arg.4), index=1
  %convert.4 = f32[8]{0:T(256)} convert(%get-tuple-element.5)
  ROOT %tuple.4 = (bf16[16,32]{1,0:T(8,128)(2,1)}, bf16[8]{0:T(256)}) tuple(%get-tuple-element.4, %get-tuple-element.5)
}

ENTRY %main.5 (Arg_0.5: bf16[64,32]) -> bf16[64,32] {
  %Arg_0.5 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-start.5 = (bf16[64,32]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]) copy-start(%Arg_0.5)
  %copy-done.5 = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start.5)
  %fusion.2 = (f32[64,32]{1,0}, f32[64,32]{1,0}) fusion(%Arg_0.5), kind=kLoop, calls=%fused_computation.2
  ROOT %fusion.1 = bf16[64,32]{1,0:T(8,128)(2,1)} fusion(%copy-done.5, %Arg_0.5), kind=kLoop, calls=%fused_computation.1
}
"""


def test_a_tpu_s_program() -> None:
    """The largest remaining step is the fusion in the loop's body."""
    assert largest_move(TPU) == 2 * 512
    assert largest_move(TPU.replace("T(8,128)(2,1)S(1)", "T(8,128)(2,1)")) == 2 * 64 * 32
    assert largest_move("") == 0


def test_a_copy_from_a_tpu_core_s_memory_is_no_move() -> None:
    """As at the end of a loop that kept a part of the cache there; the same copy within the HBM is a move."""
    far, near = "bf16[64,32]{1,0:T(8,128)(2,1)}", "bf16[64,32]{1,0:T(8,128)(2,1)S(1)}"

    def text(source: str) -> str:
        return f"""
ENTRY %main.1 (arg.1: bf16[64,32]) -> bf16[64,32] {{
  %while.1 = ({source}, s32[]) while(%tuple.1), condition=%condition.1, body=%body.1
  %get-tuple-element.1 = {source} get-tuple-element(%while.1), index=0
  %copy-start.1 = ({far}, {source}, u32[]{{:S(2)}}) copy-start(%get-tuple-element.1)
  ROOT %copy-done.1 = {far} copy-done(%copy-start.1)
}}
"""

    assert largest_move(text(near)) == 0
    assert largest_move(text(far)) == 2 * 64 * 32


@pytest.mark.parametrize(
    ("function", "moved"),
    [
        (lambda x: x.T.copy(), 4 * 256 * 512),
        (lambda x: x.astype(jnp.bfloat16), 2 * 256 * 512),
        (lambda x: x * 2 + 1, 0),
        (lambda x: (x.T * 2).sum(0), 0),
    ],
    ids=["transpose", "convert", "compute", "transposed while it is read"],
)
def test_a_cpu_s_program(function: Callable, moved: int) -> None:
    assert largest_move(jax.jit(function).lower(WIDE).compile().as_text()) == moved
