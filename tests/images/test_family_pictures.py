"""Pictures to start from and painting over them, of the families of today, against diffusers' own classes in torch."""

import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from hfjax_app.errors import RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest, noise
from hfjax_app.images.generator import Origin
from hfjax_app.images.interface import Recommended
from hfjax_app.images.stand_ins import Noises
from hfjax_app.studio.images_screen import result

from .families import EDITORS as NEEDY
from .families import FAMILIES, family
from .pipelines import stable_diffusion_xl
from .test_families import GUIDANCE

SEED, STEPS = 11, 4
SIZE = (64, 32)
OPTIONS: dict[str, Any] = {"prompt": "a red dot", "guidance_scale": 3.0, "steps": STEPS, "seed": SEED}
# What the names of classes begin with.
CLASSES = {
    "Flux.1 dev": "Flux",
    "Flux.1 schnell": "Flux",
    "Qwen-Image": "QwenImage",
    "Z-Image": "ZImage",
    "Stable Diffusion 3.5": "StableDiffusion3",
    "Stable Diffusion XL": "StableDiffusionXL",
    "Chroma": "Chroma",
    "LCM": "LatentConsistencyModel",
    "Kolors": "Kolors",
}
REPRESENTATIVE = "Flux.1 dev"
# diffusers' own mistakes: this class decodes without the shift of the latents, so these are compared ...
WITHOUT_SHIFT = diffusers.StableDiffusion3InpaintPipeline
# ... and this one reads a value that its transformer's config lacks.
BROKEN = diffusers.ChromaInpaintPipeline


# Whose class takes a picture beside the prompt; those of Flux.2 want sides of 64 pixels.
EDITORS = ("Flux.1 Kontext", "Flux.2 klein", "Flux.2 klein base", "Flux.2 dev")
EDITED_SIZES = ((64, 64), (128, 64))


def drawing(size: tuple[int, int] = SIZE) -> Image.Image:
    picture = Image.new("RGB", size, (40, 120, 200))
    ImageDraw.Draw(picture).ellipse((6, 6, 40, 20), fill=(230, 80, 30))
    return picture


def right_half() -> Image.Image:
    mask = Image.new("L", SIZE)
    ImageDraw.Draw(mask).rectangle((SIZE[0] // 2, 0, *SIZE), fill=255)
    return mask


def torch_pixels(name: str, kind: Any, pipeline: Any, facts: Any, **options: Any) -> np.ndarray:
    """diffusers' own picture, given the generator's noise: float32 [height, width, 3]."""
    accepted = inspect.signature(kind).parameters
    editor = kind(**{part: value for part, value in pipeline.components.items() if part in accepted})
    editor.set_progress_bar_config(disable=True)
    first, spread = (torch.from_numpy(values) for values in noise.first_noise(SEED, facts.latents.of(SIZE)))
    fresh = [torch.tensor(np.asarray(noise.step_noise(noise.key_of(SEED), i, first.shape))) for i in range(STEPS)]
    if "mask_image" in options:
        fresh.insert(0, spread)  # these classes encode the masked picture too
    argument, needed = GUIDANCE.get(name, ("guidance_scale", {}))
    options |= needed | {argument: OPTIONS["guidance_scale"], "width": SIZE[0], "height": SIZE[1]}
    options = {key: value for key, value in options.items() if key in inspect.signature(editor.__call__).parameters}
    values = iter([spread, first, *fresh])
    output = "latent" if kind is WITHOUT_SHIFT else "np"
    with Noises(lambda shape: next(values).reshape(shape)):
        made = editor(
            prompt=OPTIONS["prompt"], image=drawing(), num_inference_steps=STEPS, output_type=output, **options
        ).images
    return made.numpy() if output == "latent" else made[0]


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")  # diffusers' own import, in Chroma
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != REPRESENTATIVE)) for name in CLASSES]
)
def test_pictures_to_start_from_equal_diffusers(name: str, compilations: Callable) -> None:
    """How many steps a strength leaves is rounded in another way by Flux than by Stable Diffusion."""
    pipeline = family(name) if name in FAMILIES else stable_diffusion_xl()
    generator = ImageGenerator(pipeline, origin=Origin(recommended=Recommended(size=SIZE)))
    with compilations() as compiled:
        *_, step = generator.generate(ImageRequest(**OPTIONS))
    plain = step.pictures[0].pixels
    for strength, mask in ((0.7, None), (1.0, None), (0.7, right_half()), (1.0, right_half())):
        kind = getattr(diffusers, f"{CLASSES[name]}{'Img2Img' if mask is None else 'Inpaint'}Pipeline", None)
        if kind in (None, BROKEN):
            continue
        with compilations() as compiled:
            *_, step = generator.generate(ImageRequest(**OPTIONS, image=drawing(), mask=mask, strength=strength))
        assert compiled == []
        want = torch_pixels(
            name, kind, pipeline, generator.facts, strength=strength, **({} if mask is None else {"mask_image": mask})
        )
        got = step.pictures[0].latents if kind is WITHOUT_SHIFT else step.pictures[0].pixels
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)
        assert np.abs(step.pictures[0].pixels - plain).max() > 0.01 or strength == 1.0, "the picture must matter"
    with pytest.raises(RequestRejected, match=r"strength = 0\.0: "):
        generator.generate(ImageRequest(**OPTIONS, image=drawing(), strength=0.0))


def torch_edited(pipeline: Any, facts: Any, picture: Image.Image, guidance: float, **more: Any) -> np.ndarray:
    """diffusers' own picture of a prompt that edits another one, given the generator's noise."""
    first, _ = noise.first_noise(SEED, facts.latents.of(picture.size))
    width, height = picture.size
    plain = {"_auto_resize": False, "max_area": width * height, "width": width, "height": height}
    accepted = inspect.signature(pipeline.__call__).parameters
    plain |= more
    with Noises(lambda shape: torch.from_numpy(first).reshape(shape)):
        return pipeline(
            prompt=OPTIONS["prompt"],
            image=picture,
            num_inference_steps=STEPS,
            guidance_scale=guidance,
            output_type="np",
            **{name: value for name, value in plain.items() if name in accepted},
        ).images[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != EDITORS[0])) for name in EDITORS]
)
def test_pictures_edited_by_words_equal_diffusers(name: str, compilations: Callable) -> None:
    """With and without guidance, at two sizes; nothing compiles then, and the settings of a picture draw it again."""
    pipeline = family(name)
    own, other = EDITED_SIZES
    origin = Origin(recommended=Recommended(size=own, guidance_scale=0.0))
    generator = ImageGenerator(pipeline, origin=origin, sizes=[other])
    assert generator.facts.edits
    for size, guidance in ((own, 3.0), (other, 0.0)):
        options: dict[str, Any] = OPTIONS | {"guidance_scale": guidance, "width": size[0], "height": size[1]}
        source = drawing(size)
        with compilations() as compiled:
            *_, step = generator.generate(ImageRequest(**options, image=source, images=2))
            *_, plain = generator.generate(ImageRequest(**options))
            [picture, second], parameters = step.pictures, step.pictures[1].parameters
            *_, again = generator.generate(parameters.request(image=source))
        assert compiled == []
        want = torch_edited(pipeline, generator.facts, source, guidance)
        assert want.std() > 0.05, "the comparison needs a picture"
        np.testing.assert_allclose(picture.pixels, want, rtol=0, atol=2e-4)
        assert np.abs(picture.pixels - plain.pictures[0].pixels).max() > 1e-3, "the picture must matter"
        np.testing.assert_array_equal(again.pictures[0].pixels, second.pixels)
        assert parameters.values["strength"] is None
        assert "a picture changed by words" in result(step)
    with pytest.raises(RequestRejected, match="mask, expand: this model changes a picture by the prompt alone"):
        generator.generate(ImageRequest(**OPTIONS, image=drawing(), mask=right_half()))


@pytest.mark.slow
def test_a_picture_that_the_class_refuses_is_told() -> None:
    generator = ImageGenerator(family("Flux.2 klein"), origin=Origin(recommended=Recommended(size=SIZE)))
    with pytest.raises(RequestRejected, match=r"picture to start from: Image too small: 64.32"):
        generator.generate(ImageRequest(**OPTIONS, image=drawing()))


def written(pipeline: Any, folder: Path) -> Path:
    """As its repository is laid out: the processor's settings lie in the files of older releases."""
    others = copy.copy(pipeline)
    others.register_modules(processor=None)
    others.save_pretrained(folder)
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"processor": ["transformers", "Qwen2VLProcessor"]}))
    pipeline.tokenizer.save_pretrained(folder / "processor")
    pipeline.processor.image_processor.save_pretrained(folder / "processor")
    settings = folder / "processor/preprocessor_config.json"
    named = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | named))
    return folder


def with_precise_encoder(pipeline: Any) -> Any:
    """Its autoencoder reads a million pixels, of which torch's float32 makes latents that are off by 6e-5."""
    own, vae = copy.deepcopy(pipeline.vae).double(), copy.copy(pipeline.vae)

    def encode(pixels: torch.Tensor) -> Any:
        encoded = own.encode(pixels.double())
        encoded.latent_dist = type(encoded.latent_dist)(encoded.latent_dist.parameters.float())
        return encoded

    vae.encode = encode
    changed = copy.copy(pipeline)
    changed.register_modules(vae=vae)
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDY)
def test_models_that_need_a_picture_equal_diffusers(name: str, tmp_path: Path, compilations: Callable) -> None:
    """Their text encoder sees the picture too, in the shape of the drawing: each size has a program of it."""
    pipeline, (own, other) = family(name), EDITED_SIZES
    folder = written(pipeline, tmp_path)
    settings = "num_inference_steps: 4, guidance_scale: 1.0, width: {}, height: {}".format(*own)
    (folder / "README.md").write_text(f"---\ninference: {{parameters: {{{settings}}}}}\n---\n")
    generator = ImageGenerator.from_pretrained(folder, sizes=[other])
    precise = with_precise_encoder(pipeline)
    assert (generator.facts.edits, generator.facts.needs_picture) == (True, True)
    for size, guidance in ((own, 3.0), (other, 0.0)):
        options: dict[str, Any] = OPTIONS | {"guidance_scale": guidance, "width": size[0], "height": size[1]}
        source = drawing(size)
        with compilations() as compiled:
            *_, step = generator.generate(ImageRequest(**options, image=source, images=2))
            *_, plain = generator.generate(ImageRequest(**options, image=Image.new("RGB", size, "white")))
            [picture, second] = step.pictures
            *_, again = generator.generate(second.parameters.request(image=source))
        assert compiled == []
        beside = {"true_cfg_scale": guidance, "negative_prompt": " "}
        want = torch_edited(precise, generator.facts, source, guidance, **beside)
        assert want.std() > 0.05, "the comparison needs a picture"
        np.testing.assert_allclose(picture.pixels, want, rtol=0, atol=2e-4)
        assert np.abs(picture.pixels - plain.pictures[0].pixels).max() > 1e-3, "the picture must matter"
        np.testing.assert_array_equal(again.pictures[0].pixels, second.pixels)
    with pytest.raises(
        RequestRejected, match="picture to start from: this model changes one by the prompt, and needs it"
    ):
        generator.generate(ImageRequest(**OPTIONS))
    typed = OPTIONS | {"prompt": "<|image_pad|> " + "red " * 140 + "the end", "image": drawing(own)}
    *_, step = generator.generate(ImageRequest(**typed, width=own[0], height=own[1]))
    assert step.notice.startswith("the end of the prompt was not read: "), step.notice
    assert step.notice.endswith("red the end'"), step.notice
