"""The rungs of a picture, from the bottom: eager_pipeline, compiled_networks, compiled_decoder, this_app.

Each module has a function `prepare(task)`. It does what is done once, and returns a function that draws the picture and
calls its argument after each denoising step.
"""
