"""A script that runs before Gradio's own, so that an open page leaves its visitor's processor alone.

What Gradio takes as `head` comes after its modules have kept the browser's functions for themselves.
"""

from pathlib import Path

from gradio.routes import templates
from jinja2.ext import Extension

_SCRIPT = Path(__file__).with_name("frames.js").read_text(encoding="utf-8")


class _First(Extension):
    """Puts the script first into the head of Gradio's pages, whose templates Jinja fills in."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return source.replace("<head>", f"<head><script>{{% raw %}}{_SCRIPT}{{% endraw %}}</script>", 1)


def rest_between_frames() -> None:
    """For every page that this process serves from now on."""
    templates.env.add_extension(_First)
