"""Gradio's theme in the design's tokens (assets/tokens.css), so that its components look like the rest of the page.

Fonts are those of the visitor's system, so that a page loads nothing from other hosts. Icons are
drawn by strokes in a square of 24.

Scripts and styles stand first in the head of the page, in place of Gradio's link preview:

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

import inspect
import re
from pathlib import Path

import gradio as gr
from jinja2.ext import Extension

from hfjax_app.runtime.seams.gradio import extend_templates

_TEAL = gr.themes.Color(
    name="teal",
    c50="#effaf8",
    c100="#d3f1ec",
    c200="#a9e3da",
    c300="#74cdc2",
    c400="#42b0a6",
    c500="#28948c",
    c600="#0e6e69",
    c700="#0a5652",
    c800="#194c4b",
    c900="#183f3f",
    c950="#082425",
)
_STONE = gr.themes.Color(
    name="stone",
    c50="#fbfaf7",
    c100="#f4f2ed",
    c200="#e3e0d8",
    c300="#cdcbc3",
    c400="#868b87",
    c500="#5f6865",
    c600="#47514e",
    c700="#3d4340",
    c800="#27322f",
    c900="#18201f",
    c950="#101615",
)

# The tokens have a value for light and one for dark, so each variable is the same in both.
_VARIABLES = {
    "body_background_fill": "var(--paper)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--ink-3)",
    "background_fill_primary": "var(--surface)",
    "background_fill_secondary": "var(--sunken)",
    "border_color_primary": "var(--line)",
    "border_color_accent": "var(--accent)",
    "border_color_accent_subdued": "var(--edge-2)",
    "color_accent": "var(--accent)",
    "color_accent_soft": "var(--accent-soft)",
    "link_text_color": "var(--accent)",
    "link_text_color_active": "var(--accent-strong)",
    "link_text_color_hover": "var(--accent-strong)",
    "link_text_color_visited": "var(--accent)",
    "code_background_fill": "var(--hover)",
    "shadow_drop": "var(--shadow)",
    "shadow_drop_lg": "var(--shadow)",
    "block_background_fill": "var(--surface)",
    "block_border_color": "var(--line)",
    "block_border_width": "1px",
    "block_info_text_color": "var(--ink-3)",
    "block_label_background_fill": "transparent",
    "block_label_border_width": "0px",
    "block_label_text_color": "var(--ink-3)",
    "block_shadow": "none",
    "block_title_text_color": "var(--ink-2)",
    "block_title_text_weight": "550",
    "panel_background_fill": "var(--sunken)",
    "panel_border_color": "var(--line)",
    "accordion_text_color": "var(--ink)",
    "table_text_color": "var(--ink)",
    "table_border_color": "var(--line)",
    "table_even_background_fill": "var(--surface)",
    "table_odd_background_fill": "var(--sunken)",
    "table_row_focus": "var(--hover)",
    "checkbox_background_color": "var(--surface)",
    "checkbox_background_color_focus": "var(--surface)",
    "checkbox_background_color_hover": "var(--surface)",
    "checkbox_background_color_selected": "var(--accent)",
    "checkbox_border_color": "var(--edge)",
    "checkbox_border_color_focus": "var(--accent)",
    "checkbox_border_color_hover": "var(--accent)",
    "checkbox_border_color_selected": "var(--accent)",
    "checkbox_label_background_fill": "var(--surface)",
    "checkbox_label_background_fill_hover": "var(--hover)",
    "checkbox_label_background_fill_selected": "var(--accent-soft)",
    "checkbox_label_border_color": "var(--edge-2)",
    "checkbox_label_border_color_hover": "var(--edge-2)",
    "checkbox_label_border_color_selected": "var(--accent)",
    "checkbox_label_text_color": "var(--ink)",
    "checkbox_label_text_color_selected": "var(--ink)",
    "error_background_fill": "var(--surface)",
    "error_border_color": "var(--bad)",
    "error_text_color": "var(--bad)",
    "error_icon_color": "var(--bad)",
    "input_background_fill": "var(--surface)",
    "input_background_fill_focus": "var(--surface)",
    "input_background_fill_hover": "var(--surface)",
    "input_border_color": "var(--edge)",
    "input_border_color_focus": "var(--accent)",
    "input_border_color_hover": "var(--edge)",
    "input_border_width": "1px",
    "input_placeholder_color": "var(--ink-3)",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 1px var(--accent)",
    "loader_color": "var(--accent)",
    "slider_color": "var(--accent)",
    "stat_background_fill": "var(--accent)",
    "button_border_width": "1px",
    "button_primary_background_fill": "var(--accent)",
    "button_primary_background_fill_hover": "var(--accent-strong)",
    "button_primary_border_color": "var(--accent)",
    "button_primary_border_color_hover": "var(--accent-strong)",
    "button_primary_text_color": "var(--on-accent)",
    "button_primary_text_color_hover": "var(--on-accent)",
    "button_primary_shadow": "none",
    "button_primary_shadow_hover": "none",
    "button_primary_shadow_active": "none",
    "button_secondary_background_fill": "var(--surface)",
    "button_secondary_background_fill_hover": "var(--hover)",
    "button_secondary_border_color": "var(--edge-2)",
    "button_secondary_border_color_hover": "var(--edge-2)",
    "button_secondary_text_color": "var(--ink)",
    "button_secondary_text_color_hover": "var(--ink)",
    "button_secondary_shadow": "none",
    "button_secondary_shadow_hover": "none",
    "button_secondary_shadow_active": "none",
    "button_cancel_background_fill": "var(--surface)",
    "button_cancel_background_fill_hover": "var(--hover)",
    "button_cancel_border_color": "var(--edge-2)",
    "button_cancel_text_color": "var(--bad)",
    "button_cancel_text_color_hover": "var(--bad)",
}


def theme() -> gr.themes.Base:
    """Warm paper with one teal; light and dark."""
    base = gr.themes.Base(
        primary_hue=_TEAL,
        secondary_hue=_TEAL,
        neutral_hue=_STONE,
        radius_size=gr.themes.sizes.radius_lg,
        font=["var(--sans)"],
        font_mono=["var(--mono)"],
    )
    known = inspect.signature(base.set).parameters
    dark = {f"{name}_dark": value for name, value in _VARIABLES.items() if f"{name}_dark" in known}
    return base.set(**_VARIABLES, **dark)


CROSS = '<path d="M6 6l12 12M18 6 6 18"/>'
SLIDERS = '<path d="M4 7h9M19 7h1M4 17h1M11 17h9"/><circle cx="16" cy="7" r="2.5"/><circle cx="8" cy="17" r="2.5"/>'


def icon(path: str) -> str:
    return f'<svg class="i" viewBox="0 0 24 24" aria-hidden="true">{path}</svg>'


def icon_button(name: str, path: str, attributes: str) -> str:
    """A button that shows only an icon; its name is for screen readers and in its tooltip."""
    return f'<button class="icon" type="button" {attributes} aria-label="{name}" title="{name}">{icon(path)}</button>'


_ROWS = ("100", "111", "101")


def mark(*, waving: bool = False) -> str:
    """The mark as SVG, in the colour of its text.

    Args:
        waving: whether a wave runs through the cells, as data does through the array: for what is being compiled.
    """
    cells = "".join(
        f'<rect{_attributes(row + column, cell, waving)} x="{1 + 8 * column}" y="{1 + 8 * row}" '
        'width="6.4" height="6.4" rx="1.7"/>'
        for row, line in enumerate(_ROWS)
        for column, cell in enumerate(line)
    )
    kind = "mark wave" if waving else "mark"
    return f'<svg class="{kind}" viewBox="0 0 24.4 24.4" fill="currentColor" aria-hidden="true">{cells}</svg>'


def _attributes(delay: int, cell: str, waving: bool) -> str:
    return f' style="--d:{delay}"' if waving else "" if cell == "1" else ' class="off"'


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
