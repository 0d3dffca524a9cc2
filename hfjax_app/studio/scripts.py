"""What stands first in the head of the page: its scripts and styles, in place of Gradio's link preview.

- theme.js sets light or dark before anything is drawn, shell.js is the frame of the page.
- frames.js slows down Gradio's status trackers, which would keep a visitor's processor busy.
- panels.js opens and closes the panels beside a tab's content.
- chat.js and the others of its name are what the chat does in the browser.
- clipboard.js copies messages as they were typed.
- images.js is what the images tab does in the browser.
- pictures.js scales down pictures before they are sent.
- lists.js puts the example of a list into its field.
- session_storage.js stores the gallery, so that it outlives a reload.

Scripts in Gradio's `head` option would be too late: Gradio's modules have taken references to the browser's functions
by then. Its `css` option would put styles into the page twice, and not before Gradio has drawn it.
"""

import re
from pathlib import Path

from jinja2.ext import Extension

from hfjax_app.runtime.seams.gradio import extend_templates

NONCE = "hfjax.nonce"  # in the ASGI scope of a request: what the page's inline scripts carry
ASSETS = Path(__file__).with_name("assets")
FAVICON = ASSETS / "favicon.svg"

_SCRIPTS = (
    "theme",
    "shell",
    "frames",
    "clipboard",
    "pictures",
    "session_storage",
    "panels",
    "chat",
    "chat_list",
    "chat_settings",
    "chat_pictures",
    "chat_foot",
    "chat_box",
    "images",
    "lists",
)
_STYLES = (
    "tokens",
    "shell",
    "gradio",
    "start",
    "engine",
    "chat",
    "chat_panels",
    "settings_panel",
    "images",
    "images_panels",
    "settings_drawer",
    "models",
    "sentiment",
)
_ABOUT = "Chat, sentiment and pictures from Hugging Face's PyTorch models, computed by JAX."
_NOT_OURS = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>|<link rel="manifest"[^>]*>')


def _element(tag: str, name: str) -> str:
    text = (ASSETS / name).read_text(encoding="utf-8")
    return f"<{tag}>{{% raw %}}{text}{{% endraw %}}</{tag}>"  # not a template, whatever is in it


def _head() -> str:
    about = f'<meta name="description" content="{_ABOUT}"><link rel="icon" href="favicon.ico" type="image/svg+xml">'
    scripts = [_element("script", f"{name}.js") for name in _SCRIPTS]
    return "".join([about, *scripts, *(_element("style", f"{name}.css") for name in _STYLES)])


class _OwnHead(Extension):
    """Puts this head first into Gradio's pages, which are Jinja templates, and the nonce into all scripts."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        source = _NOT_OURS.sub("", source).replace("<head>", f"<head>{_head()}", 1)
        return source.replace("<script", f"<script nonce=\"{{{{ request.scope['{NONCE}'] }}}}\"")


def run_first() -> None:
    """Add the head to every page that this process serves from now on."""
    extend_templates(_OwnHead)
