"""The ladder: the road of torchax's blog posts, from eager PyTorch to this app's engine, timed on this machine.

Each rung is a short function that can be read by itself, in `chat.py` and `images.py`. `ladder_result.py` lists them
with the posts' own figures and keeps the result for the page; `climb.py` runs and compares them. The posts, by Han Qi,
are https://huggingface.co/blog/qihqi/huggingface-jax-01 to -04.
"""
