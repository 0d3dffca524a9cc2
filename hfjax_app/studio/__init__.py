"""The studio: the Gradio app. With app.py, the only place that imports gradio."""

from hfjax_app.studio.blocks import build_studio
from hfjax_app.studio.server import launch

__all__ = ["build_studio", "launch"]
