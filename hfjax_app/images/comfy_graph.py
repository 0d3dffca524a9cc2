"""Generation parameters in the graph of nodes that ComfyUI puts into its pictures.

Of the nodes that lead to the picture the first sampling counts: its seed, steps and so on, the texts behind its two
conditionings, and the size of its latents. Does not know what a name means: `foreign_parameters.py` does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_SAMPLING = ("seed", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "denoise")
_TEXTS = ("text", "text_g", "clip_l", "t5xxl", "prompt", "string", "value")
_FILES = {"ckpt_name": "Model", "unet_name": "Model", "lora_name": "LoRA", "control_net_name": "ControlNet"}
# Nodes whose work is done here too, or that only show or save; by the beginning of their class's name.
_UNDERSTOOD = (
    *("KSampler", "SamplerCustom", "RandomNoise", "BasicScheduler", "BasicGuider", "CFGGuider", "EmptyLatent"),
    *("EmptySD3Latent", "CLIPTextEncode", "CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader", "CheckpointLoader"),
    *(
        "UNETLoader",
        "VAELoader",
        "VAEDecode",
        "SaveImage",
        "PreviewImage",
        "Primitive",
        "Note",
        "Reroute",
        "LoraLoader",
    ),
)

_Nodes = Mapping[str, Mapping[str, Any]]


def is_graph(value: object) -> bool:
    """Whether a JSON value is such a graph: nodes by their numbers."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
            for node in value.values()
        )
    )


def read(nodes: _Nodes) -> dict[str, object] | None:
    """The parameters by the nodes' names for them, with "Prompt" and "Negative prompt"; None where nothing samples."""
    ends = [key for key, node in nodes.items() if node["class_type"].startswith(("SaveImage", "PreviewImage"))]
    order = list(_upstream(nodes, ends or list(nodes)))
    samplers = [key for key in order if "steps" in nodes[key]["inputs"]]
    if not samplers:
        return None
    first = samplers[-1]  # the farthest from the picture: later ones refine it
    # of some nodes' samplers the steps, the seed and the prompts are in nodes of their own
    around = next((key for key in reversed(order) if first in _links(nodes[key])), first)
    reached = list(_upstream(nodes, [around]))
    found: dict[str, object] = {}
    for key in [first, *reached]:
        for name, value in nodes[key]["inputs"].items():
            if name in _SAMPLING and isinstance(value, str | int | float):
                found.setdefault(name, value)
            if name in ("positive", "conditioning"):
                found.setdefault("Prompt", _text(nodes, value))
            if name == "negative":
                found.setdefault("Negative prompt", _text(nodes, value))
            if name in ("width", "height") and "Latent" in nodes[key]["class_type"] and isinstance(value, int):
                found.setdefault(name, value)
            if name in _FILES and isinstance(value, str):
                label = _FILES[name]
                found[label] = f"{found[label]}; {value}" if label in found and label != "Model" else value
    if len(samplers) > 1:
        found["Nodes that sample"] = len(samplers)
    others = {nodes[key]["class_type"] for key in order} - {""}
    if unknown := sorted(name for name in others if not name.startswith(_UNDERSTOOD)):
        found["Nodes"] = "; ".join(unknown)
    return found


def _links(node: Mapping[str, Any]) -> list[str]:
    return [str(value[0]) for value in node["inputs"].values() if isinstance(value, list) and value]


def _upstream(nodes: _Nodes, ends: list[str]) -> Iterator[str]:
    """These nodes and those that they read from, the nearest first; each once."""
    queue, seen = [key for key in ends if key in nodes], set(ends)
    while queue:
        following: list[str] = []
        for key in queue:
            yield key
            for link in _links(nodes[key]):
                if link in nodes and link not in seen:
                    seen.add(link)
                    following.append(link)
        queue = following


def _text(nodes: _Nodes, link: object) -> str:
    """The text nearest to a conditioning."""
    if not isinstance(link, list) or not link:
        return ""
    for key in _upstream(nodes, [str(link[0])]):
        for name in _TEXTS:
            value = nodes[key]["inputs"].get(name)
            if isinstance(value, str):
                return value
    return ""
