"""The studio: the page in Gradio, one file for each tab."""
