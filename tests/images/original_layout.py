"""The weights of small models under the names of the original code, as model sites' single files have them.

Of Stable Diffusion 1 the whole model, of Z-Image and Qwen-Image the transformer. (diffusers' converter for Flux.1 takes
its full width only.)
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
