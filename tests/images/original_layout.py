"""The weights of small models under the names of the original code, as model sites' single files have them.

Of Stable Diffusion 1 the whole model, of Flux.1, Z-Image and Qwen-Image the transformer.
"""

import re
from typing import Any

import torch

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}


def whole(pipeline: Any) -> dict[str, torch.Tensor]:
    """All weights of a pipeline of `pipelines.stable_diffusion`: two levels, one layer a block."""
    parts = {
        ("model.diffusion_model.", _of_unet): pipeline.unet,
        ("first_stage_model.", _of_vae): pipeline.vae,
        ("cond_stage_model.transformer.", _of_text_encoder): pipeline.text_encoder,
    }
    return {
        prefix + rename(key): tensor.contiguous()
        for (prefix, rename), part in parts.items()
        for key, tensor in part.state_dict().items()
    }


def transformer(pipeline: Any) -> dict[str, torch.Tensor]:
    """The transformer of a Z-Image, whose queries, keys and values are one layer, or of a Qwen-Image."""
    state = pipeline.transformer.state_dict()
    for key in [key for key in state if key.endswith(".attention.to_q.weight")]:
        parts = [state.pop(key.replace("to_q", name)) for name in ("to_q", "to_k", "to_v")]
        state[key.replace("to_q", "qkv")] = torch.cat(parts)
    return {f"model.diffusion_model.{_of_transformer(key)}": tensor.contiguous() for key, tensor in state.items()}


# Of Flux.1: diffusers' names, one or several for layers that are one, and those of the original code.
_FLUX = (
    (("time_text_embed.timestep_embedder.linear_1",), "time_in.in_layer"),
    (("time_text_embed.timestep_embedder.linear_2",), "time_in.out_layer"),
    (("time_text_embed.text_embedder.linear_1",), "vector_in.in_layer"),
    (("time_text_embed.text_embedder.linear_2",), "vector_in.out_layer"),
    (("time_text_embed.guidance_embedder.linear_1",), "guidance_in.in_layer"),
    (("time_text_embed.guidance_embedder.linear_2",), "guidance_in.out_layer"),
    (("context_embedder",), "txt_in"),
    (("x_embedder",), "img_in"),
    (("proj_out",), "final_layer.linear"),
    (("norm_out.linear",), "final_layer.adaLN_modulation.1"),
)
_FLUX_DOUBLE = (
    (("norm1.linear",), "img_mod.lin"),
    (("norm1_context.linear",), "txt_mod.lin"),
    (("attn.to_q", "attn.to_k", "attn.to_v"), "img_attn.qkv"),
    (("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), "txt_attn.qkv"),
    (("attn.norm_q",), "img_attn.norm.query_norm"),
    (("attn.norm_k",), "img_attn.norm.key_norm"),
    (("attn.norm_added_q",), "txt_attn.norm.query_norm"),
    (("attn.norm_added_k",), "txt_attn.norm.key_norm"),
    (("ff.net.0.proj",), "img_mlp.0"),
    (("ff.net.2",), "img_mlp.2"),
    (("ff_context.net.0.proj",), "txt_mlp.0"),
    (("ff_context.net.2",), "txt_mlp.2"),
    (("attn.to_out.0",), "img_attn.proj"),
    (("attn.to_add_out",), "txt_attn.proj"),
)
_FLUX_SINGLE = (
    (("norm.linear",), "modulation.lin"),
    (("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), "linear1"),
    (("attn.norm_q",), "norm.query_norm"),
    (("attn.norm_k",), "norm.key_norm"),
    (("proj_out",), "linear2"),
)


def flux_transformer(pipeline: Any) -> dict[str, torch.Tensor]:
    """The transformer of a Flux.1 with one block of each kind, bfloat16."""
    state, original = pipeline.transformer.state_dict(), dict[str, torch.Tensor]()
    for ours, theirs, names in (
        ("", "", _FLUX),
        ("transformer_blocks.0.", "double_blocks.0.", _FLUX_DOUBLE),
        ("single_transformer_blocks.0.", "single_blocks.0.", _FLUX_SINGLE),
    ):
        for layers, name in names:
            for part in ("weight", "bias"):
                found = [state.pop(f"{ours}{layer}.{part}") for layer in layers if f"{ours}{layer}.{part}" in state]
                if name.startswith("final_layer.ada"):  # its halves change places
                    found = [*reversed(found[0].chunk(2))]
                ending = "scale" if "_norm" in name else part
                if found:
                    original[f"{theirs}{name}.{ending}"] = torch.cat(found).bfloat16()
    assert not state
    return original


def _of_transformer(key: str) -> str:
    key = re.sub(r"^all_(final_layer|x_embedder)\.2-1\.", r"\1.", key)
    key = re.sub(r"\.attention\.norm_([qk])\.", r".attention.\1_norm.", key)
    return key.replace(".attention.to_out.0.", ".attention.out.")


def _of_unet(key: str) -> str:
    for name, original in _UNET.items():
        if key.startswith(name + "."):
            return original + key[len(name) :]
    found = re.fullmatch(r"(down|mid|up)_blocks?\.(?:(\d)\.)?(resnets|attentions|\w+samplers)\.(\d)\.(.*)", key)
    assert found, key
    side, block, kind, layer, rest = found[1], int(found[2] or 0), found[3], int(found[4]), found[5]
    if kind == "resnets":
        name, _, rest = rest.partition(".")
        rest = f"{_RESNET[name]}.{rest}"
    if side == "mid":
        return f"middle_block.{2 * layer if kind == 'resnets' else 1}.{rest}"
    if side == "down":
        if kind == "downsamplers":
            return f"input_blocks.{2 * block + 2}.0.op.{rest.removeprefix('conv.')}"
        return f"input_blocks.{2 * block + layer + 1}.{int(kind == 'attentions')}.{rest}"
    if kind == "upsamplers":  # behind the attention of the first block's last layer
        return f"output_blocks.{2 * block + 1}.2.{rest}"
    return f"output_blocks.{2 * block + layer}.{int(kind == 'attentions')}.{rest}"


def _of_vae(key: str) -> str:
    key = re.sub(r"down_blocks\.(\d)\.resnets\.", r"down.\1.block.", key)
    key = re.sub(r"up_blocks\.(\d)\.resnets\.", lambda found: f"up.{1 - int(found[1])}.block.", key)
    key = re.sub(r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample", key)
    key = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda found: f"up.{1 - int(found[1])}.upsample", key)
    key = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}", key)
    return key.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")


def _of_text_encoder(key: str) -> str:
    return key if key.startswith("text_model.") else f"text_model.{key}"
