"""Scripts that run before Gradio's own.

- frames.js slows down Gradio's status trackers, which would keep a visitor's processor busy.
- clipboard.js copies messages as they were typed.
- pictures.js scales down pictures before they are sent.
- session_storage.js stores the conversation and the gallery, so that they outlive a reload.

Scripts in Gradio's `head` option would be too late: Gradio's modules have taken references to the browser's functions
by then.
"""

from pathlib import Path

from gradio.routes import templates
from jinja2.ext import Extension

NONCE = "hfjax.nonce"  # in the ASGI scope of a request: what the page's inline scripts carry

_SCRIPTS = "".join(
    f"<script>{{% raw %}}{Path(__file__).with_name(name).read_text(encoding='utf-8')}{{% endraw %}}</script>"
    for name in ("frames.js", "clipboard.js", "pictures.js", "session_storage.js")
)


class _ScriptsFirst(Extension):
    """Puts the scripts first into the head of Gradio's pages, which are Jinja templates, and the nonce into all."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        source = source.replace("<head>", f"<head>{_SCRIPTS}", 1)
        return source.replace("<script", f"<script nonce=\"{{{{ request.scope['{NONCE}'] }}}}\"")


def run_first() -> None:
    """Add the scripts to every page that this process serves from now on."""
    templates.env.add_extension(_ScriptsFirst)
