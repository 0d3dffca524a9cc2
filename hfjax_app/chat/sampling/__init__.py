"""From logits to a token: parameters, penalties, noise, log-probabilities."""
