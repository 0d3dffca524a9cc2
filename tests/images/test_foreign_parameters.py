"""Files of other programs: what is taken over, what is listed as left out, and that one value refuses no file."""

import io
import json
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.foreign_parameters import canonical_scheduler, nearest_scheduler
from hfjax_app.images.generation_parameters import fitted, read_png

WEB_UI = """a (red:1.2) circle, on a form
<lora:paint:0.8> two lines
Negative prompt: blue
Steps: 25, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 6.5, Seed: 11, Size: 512x768, Model hash: aa11, \
Model: some, Denoising strength: 0.4, Hires upscale: 2, Hires upscaler: Latent, Lora hashes: "paint: 77", Version: v1.9
Template: a __colour__ circle"""
FOOOCUS = {
    "prompt": "a cat",
    "negative_prompt": "",
    "styles": "['Fooocus V2']",
    "performance": "Speed",
    "steps": 30,
    "resolution": "(1152, 896)",
    "guidance_scale": 4.0,
    "sharpness": 2.0,
    "base_model": "juggernaut",
    "sampler": "dpmpp_2m_sde_gpu",
    "scheduler": "karras",
    "seed": "5124",
    "version": "Fooocus v2.5.0",
}
COMFY = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            **{"seed": 7, "steps": 20, "cfg": 8, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0},
            **{"model": ["11", 0], "positive": ["12", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "v1-5.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 640, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": ["13", 0], "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["4", 1]}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["10", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["8", 0]}},
    "10": {
        "class_type": "KSampler",
        "inputs": {
            **{"seed": 8, "steps": 9, "cfg": 3, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 0.5},
            **{"model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["3", 0]},
        },
    },
    "11": {"class_type": "LoraLoader", "inputs": {"lora_name": "paint", "model": ["4", 0], "clip": ["4", 1]}},
    "12": {"class_type": "ControlNetApply", "inputs": {"conditioning": ["6", 0], "strength": 0.7}},
    "13": {"class_type": "PrimitiveString", "inputs": {"value": "a glass bottle"}},
}
COMFY_FLUX = {
    "1": {"class_type": "RandomNoise", "inputs": {"noise_seed": 99}},
    "2": {"class_type": "BasicScheduler", "inputs": {"scheduler": "simple", "steps": 4, "denoise": 1.0}},
    "3": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "4": {"class_type": "BasicGuider", "inputs": {"conditioning": ["5", 0]}},
    "5": {"class_type": "CLIPTextEncode", "inputs": {"text": "a fox"}},
    "6": {
        "class_type": "SamplerCustomAdvanced",
        "inputs": {"noise": ["1", 0], "guider": ["4", 0], "sampler": ["3", 0], "sigmas": ["2", 0]},
    },
    "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0]}},
}
INVOKE = {
    "positive_prompt": "a dog",
    "negative_prompt": "cat",
    **{"width": 640, "height": 512, "seed": 12, "cfg_scale": 7.5, "steps": 50, "scheduler": "dpmpp_2m_k"},
    "model": {"name": "dreamshaper", "key": "1"},
}
NOVEL = {"prompt": "a girl", "uc": "bad", "steps": 28, "scale": 5.0, "seed": 3, "sampler": "k_euler_ancestral"}


def png(**chunks: str) -> bytes:
    info, file = PngInfo(), io.BytesIO()
    for name, text in chunks.items():
        info.add_itxt(name, text)
    Image.new("RGB", (32, 32)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def in_exif(kind: str, encoding: str = "utf-16-be") -> bytes:
    picture, file = Image.new("RGB", (32, 32)), io.BytesIO()
    exif = picture.getexif()
    exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + WEB_UI.encode(encoding)
    picture.save(file, kind, exif=exif)
    return file.getvalue()


A_CIRCLE = {
    **{"prompt": "a (red:1.2) circle, on a form\n two lines", "negative_prompt": "blue", "steps": 25, "seed": 11},
    **{"guidance_scale": 6.5, "width": 512, "height": 768, "scheduler": "DPM++ 2M Karras"},
}
OF_A_CIRCLE = [
    *("Hires upscale: 2", "Hires upscaler: Latent", "Lora hashes: paint: 77", "Template: a __colour__ circle"),
    *("Denoising strength: 0.4", "LoRA paint:0.8"),
]


@pytest.mark.parametrize(
    ("file", "arguments", "left_out"),
    [
        (png(parameters=WEB_UI), A_CIRCLE, OF_A_CIRCLE),
        (in_exif("JPEG"), A_CIRCLE, OF_A_CIRCLE),
        (in_exif("WEBP"), A_CIRCLE, OF_A_CIRCLE),
        (
            png(parameters=json.dumps(FOOOCUS), fooocus_scheme="fooocus"),
            {
                **{"prompt": "a cat", "negative_prompt": "", "steps": 30, "guidance_scale": 4.0, "seed": 5124},
                **{"width": 1152, "height": 896, "scheduler": "DPM++ 2M SDE Karras"},
            },
            ["styles: ['Fooocus V2']", "performance: Speed", "sharpness: 2.0"],
        ),
        (
            png(prompt=json.dumps(COMFY), workflow="{}"),
            {
                **{"prompt": "a glass bottle", "negative_prompt": "blurry", "steps": 20, "guidance_scale": 8.0},
                **{"seed": 7, "width": 512, "height": 640, "scheduler": "Euler", "strength": 1.0},
            },
            ["LoRA: paint", "Nodes that sample: 2", "Nodes: ControlNetApply"],
        ),
        (
            png(prompt=json.dumps(COMFY_FLUX)),
            {
                **{"prompt": "a fox", "negative_prompt": "", "steps": 4, "seed": 99, "width": 32, "height": 32},
                **{"scheduler": "Euler", "strength": 1.0},
            },
            [],
        ),
        (
            png(invokeai_metadata=json.dumps(INVOKE)),
            {
                **{"prompt": "a dog", "negative_prompt": "cat", "steps": 50, "guidance_scale": 7.5, "seed": 12},
                **{"width": 640, "height": 512, "scheduler": "DPM++ 2M Karras"},
            },
            [],
        ),
        (
            png(Comment=json.dumps(NOVEL)),
            {
                **{"prompt": "a girl", "negative_prompt": "bad", "steps": 28, "guidance_scale": 5.0, "seed": 3},
                **{"width": 32, "height": 32, "scheduler": "Euler ancestral"},
            },
            [],
        ),
    ],
    ids=["web UI", "JPEG", "WebP", "Fooocus", "ComfyUI", "ComfyUI's custom sampling", "InvokeAI", "NovelAI"],
)
def test_what_is_taken_over(file: bytes, arguments: dict[str, Any], left_out: list[str]) -> None:
    """Most were refused whole, and what web UIs wrote besides was dropped without a word."""
    _, parameters = read_png(file)
    assert parameters.values == arguments
    assert list(parameters.left_out) == left_out


@pytest.mark.parametrize(
    ("line", "missing", "left_out"),
    [
        ("Steps: x, Sampler: DDIM, CFG scale: 1, Seed: 1, Size: 8x8", "steps", "Steps: x"),
        ("Steps: 1, Sampler: DDIM, CFG scale: nan, Seed: 1, Size: 8x8", "guidance_scale", "CFG scale: nan"),
        (f"Steps: 1, Sampler: DDIM, CFG scale: 1, Seed: {'9' * 5000}, Size: 8x8", "seed", "Seed: 999"),
        ("Steps: 1, CFG scale: 1, Seed: 1, Size: wide", "scheduler", "Size: wide"),
    ],
)
def test_a_value_that_is_none_refuses_no_file(line: str, missing: str, left_out: str) -> None:
    _, parameters = read_png(png(parameters=f"a cat\n{line}"))
    assert parameters.values.get(missing) is None
    assert parameters.left_out[0].startswith(left_out)
    assert parameters.values["prompt"] == "a cat"


def test_much_that_is_left_out_is_counted() -> None:
    many = ", ".join(f"Module {i}: {'x' * 500}" for i in range(30))
    _, parameters = read_png(png(parameters=f"a cat\nSteps: 1, Seed: 1, Size: 8x8, {many}"))
    assert parameters.left_out[-1] == "10 more"
    assert max(map(len, parameters.left_out)) < 130


def test_values_are_fitted_to_the_model(generator: ImageGenerator) -> None:
    """Each of these refused the whole file."""
    line = "Steps: 150, Sampler: DPM++ 3M SDE Exponential, CFG scale: 35, Seed: -1, Size: 500x9000, Model: other"
    _, parameters = read_png(png(parameters=f"(red:1.3) [blue:0.8] {'cat, ' * 3000}\nNegative prompt: dog\n{line}"))
    taken = fitted(parameters, generator.facts)
    values = taken.values
    assert (values["steps"], values["guidance_scale"], values["seed"]) == (100, 20.0, None)
    assert values["scheduler"] == "DPM++ 2M SDE"
    assert len(values["prompt"]) == 10_000
    assert values["negative_prompt"] == "dog"
    generator.generate(taken.request()).close()  # checks them
    assert [note.split(":")[0] for note in taken.left_out] == [
        *("steps 150", "guidance scale 35", "seed -1", "the prompt behind its first 10,000 characters"),
        "prompt",  # [blue:0.8] is read as text
        *("size 500 x 9000", "scheduler DPM++ 3M SDE Exponential", "model other"),
    ]


@pytest.mark.parametrize("size", [(1, 1), (33, 31), (40, 2000), (10**6, 3), (10**5, 10**5), (64, 64)], ids=str)
def test_the_nearest_size_is_one_that_the_model_takes(generator: ImageGenerator, size: tuple[int, int]) -> None:
    wide, tall = generator.facts.sizes.nearest(*size)
    generator.generate(ImageRequest("x", width=wide, height=tall)).close()
    assert (wide, tall) == (64, 64) if size == (64, 64) else wide * tall <= 4 * 32 * 32


@pytest.mark.parametrize(
    ("name", "here"),
    [
        *[("DPM++ 2M Karras", "DPM++ 2M Karras"), ("DPM++ 2M automatic", "DPM++ 2M Karras")],
        *[("dpmpp_2m_sde_gpu karras", "DPM++ 2M SDE Karras"), ("euler_ancestral normal", "Euler ancestral")],
        *[("Euler a Automatic", "Euler ancestral"), ("k_euler", "Euler"), ("uni_pc_bh2 simple", "UniPC")],
        *[("dpmpp_sde_k", "DPM++ SDE Karras"), ("PLMS", "PNDMScheduler"), ("Euler Karras", "Euler Karras")],
    ],
)
def test_names_of_other_programs(name: str, here: str) -> None:
    assert canonical_scheduler(name) == here


@pytest.mark.parametrize(
    ("name", "here"),
    [
        *[("DPM++ 2M Karras", "DPM++ 2M"), ("DPM++ SDE Karras", "Euler ancestral"), ("Heun", "Euler")],
        *[("LMS Karras", "Euler"), ("PLMS", "DDIM"), ("DPM fast", "DPM++ 2M"), ("DPM2 a Karras", "Euler ancestral")],
        *[("Euler sgm_uniform", "Euler"), ("", "DDIM"), ("my own", "DDIM"), ("DDPM", "Euler ancestral")],
    ],
)
def test_the_nearest_scheduler(name: str, here: str) -> None:
    assert nearest_scheduler(name, ("DDIM", "Euler", "Euler ancestral", "DPM++ 2M")) == here


def test_a_file_from_here_has_nothing_left_out(generator: ImageGenerator) -> None:
    *_, step = generator.generate(ImageRequest("red dot", steps=1, seed=1))
    _, parameters = read_png(step.pictures[0].png)
    assert fitted(parameters, generator.facts) == parameters
    assert fitted(parameters, generator.facts).left_out == ()
