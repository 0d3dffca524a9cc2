"""The chat models of hfjax_app/embedded: conversations written by a grammar, tokenizers, training, a held-out score.

`python -m training.chat` reproduces both models and prints their scores.
"""
