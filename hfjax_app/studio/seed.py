"""A seed as it is typed. Numbers would not do: browsers round from 2^53 on, and another seed is another answer."""


def typed_seed(typed: object) -> object:
    """The number in a seed's field, None where it is empty; anything else goes on as it is, to be refused."""
    if not isinstance(typed, str):
        return typed
    if not typed.strip():
        return None
    return int(typed) if typed.strip().isdecimal() and len(typed) <= 40 else typed
