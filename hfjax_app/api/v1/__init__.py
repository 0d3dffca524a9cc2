"""OpenAI's API: plain HTTP routes beside the studio, behind the same door. `routes.py` has the list."""
