"""The studio: the Gradio app. With app.py, the only place that imports gradio."""

from hfjax_app.studio.server import launch

__all__ = ["launch"]
