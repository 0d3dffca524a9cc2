"""The list of transforms: what is chosen for which devices and settings, and that what is planned is what is held."""

import jax
import pytest
import torch
from jax.sharding import AbstractMesh
from transformers import LlamaConfig, LlamaForCausalLM

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.held_weights import device_weights, shapes
from hfjax_app.runtime.mesh import AXIS, mesh_of
from hfjax_app.runtime.model_transform import LazyTensor, Transform, Transforms
from hfjax_app.runtime.transforms import QUANTIZATIONS, chat_transforms, head_packing

GROUPS = [tuple(f"model.layers.0.self_attn.{name}_proj" for name in "qkv")]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).eval()


@pytest.mark.parametrize("quantize", ["none", *QUANTIZATIONS])
def test_what_is_planned_is_what_is_held(model: LlamaForCausalLM, quantize: str) -> None:
    """On one CPU, where layers that read the same input are one unless they are quantised."""
    transforms = chat_transforms(model, quantize=quantize)
    empty = LlamaForCausalLM(model.config)
    transforms.adapt(empty.to("meta"), GROUPS)
    weights, planned = device_weights(model, transforms), shapes(model, transforms)
    assert {name: (array.shape, array.dtype) for name, array in weights.items()} == {
        name: (shape.shape, shape.dtype) for name, shape in planned.items()
    }
    taken = {name: tuple(tensor.shape) for name, tensor in (*empty.named_parameters(), *empty.named_buffers())}
    assert taken == {name: array.shape for name, array in weights.items()}


def test_several_devices_hold_the_layers_one_by_one(model: LlamaForCausalLM) -> None:
    """Their parts of a fused layer would not be whole heads."""
    groups = [("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj")]
    for mesh, fused in ((None, True), (mesh_of(jax.devices()[:1]), False), (AbstractMesh((8,), (AXIS,)), False)):
        transforms = chat_transforms(model, mesh)
        transforms.adapt(LlamaForCausalLM(model.config).to("meta"), groups)
        assert ("model.layers.0.mlp.up_proj.weight" not in shapes(model, transforms)) == fused


def test_transforms_are_applied_in_order_each_to_what_the_one_before_made() -> None:
    class Halved(Transform):
        def store(self, name: str, tensor: LazyTensor) -> dict[str, LazyTensor]:
            top, bottom = tensor[:].chunk(2)
            return {f"{name}.top": LazyTensor.of(top), f"{name}.bottom": LazyTensor.of(bottom)}

    class Doubled(Transform):
        def store(self, name: str, tensor: LazyTensor) -> dict[str, LazyTensor]:
            return {name: LazyTensor.of(tensor[:] * 2)}

    stored = Transforms(Halved(), Doubled()).store("w", LazyTensor.of(torch.tensor([1.0, 2.0])))
    assert {name: tensor[:].tolist() for name, tensor in stored.items()} == {"w.top": [2.0], "w.bottom": [4.0]}


def test_an_unknown_quantisation_is_refused(model: LlamaForCausalLM) -> None:
    with pytest.raises(RequestRejected, match="quantize = 'int3': one of none, int8"):
        chat_transforms(model, quantize="int3")


def test_narrow_heads_share_rows_where_the_device_has_lanes() -> None:
    assert head_packing(None).heads_per_row(8, 32) == 1, "a CPU"
    assert head_packing(None, width=128).heads_per_row(8, 32) == 4
    assert head_packing(AbstractMesh((4,), (AXIS,)), width=128).heads_per_row(8, 32) == 2
