"""A causal language model as compiled programs over a static key-value cache."""
