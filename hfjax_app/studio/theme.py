"""The studio's look: colours, fonts and sizes. Details are in studio.css.

Fonts are those of the visitor's system, so that a page loads nothing from other hosts.
"""

from pathlib import Path

import gradio as gr

CSS = Path(__file__).with_name("studio.css")
# Gradio applies CSS files to the content only; the footer is outside.
HEAD = """<style>
footer img { display: none !important; }
@media (max-width: 640px) { footer .divider { display: none !important; } }
</style>"""

_LAGOON = gr.themes.Color(
    name="lagoon",
    c50="#effaf8",
    c100="#d3f1ec",
    c200="#a9e3da",
    c300="#74cdc2",
    c400="#42b0a6",
    c500="#28948c",
    c600="#1d7772",
    c700="#1b5f5d",
    c800="#194c4b",
    c900="#183f3f",
    c950="#082425",
)
_INK = gr.themes.Color(
    name="ink",
    c50="#f8f8f6",
    c100="#f0f0ed",
    c200="#e2e2de",
    c300="#cccdc8",
    c400="#9c9e9a",
    c500="#6f7370",
    c600="#535855",
    c700="#3d4340",
    c800="#262c2b",
    c900="#191e1e",
    c950="#101414",
)


def theme() -> gr.themes.Base:
    """Warm greys with one green-blue accent; light and dark."""
    return gr.themes.Base(
        primary_hue=_LAGOON,
        secondary_hue=_LAGOON,
        neutral_hue=_INK,
        radius_size=gr.themes.sizes.radius_lg,
        font=["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    ).set(
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        background_fill_primary="white",
        background_fill_primary_dark="*neutral_900",
        background_fill_secondary="*neutral_100",
        background_fill_secondary_dark="*neutral_800",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        block_border_color="*neutral_200",
        block_border_color_dark="*neutral_800",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_border_width="0px",
        block_label_text_color="*neutral_500",
        block_title_text_color="*neutral_600",
        block_title_text_color_dark="*neutral_300",
        block_title_text_weight="500",
        input_background_fill="*neutral_50",
        input_background_fill_dark="*neutral_800",
        input_border_color="*neutral_200",
        input_border_color_dark="*neutral_700",
        input_border_color_focus="*primary_400",
        input_border_color_focus_dark="*primary_600",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        button_primary_text_color="white",
        button_secondary_background_fill="white",
        button_secondary_background_fill_hover="*neutral_100",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_background_fill_hover_dark="*neutral_700",
        button_secondary_border_color="*neutral_200",
        button_secondary_border_color_dark="*neutral_700",
        slider_color="*primary_600",
        slider_color_dark="*primary_500",
        checkbox_background_color_selected="*primary_600",
        checkbox_background_color_selected_dark="*primary_600",
        color_accent_soft="*primary_50",
        color_accent_soft_dark="*primary_950",
        border_color_accent_subdued="*primary_200",
        border_color_accent_subdued_dark="*primary_900",
    )
