"""Reads a seed from its text field. The field is not a number field, because browsers round numbers from 2^53 on."""


def typed_seed(typed: object) -> object:
    """The number in a seed's field, or None if the field is empty.

    Any other value is returned unchanged, for the backend to reject.
    """
    if not isinstance(typed, str):
        return typed
    if not typed.strip():
        return None
    return int(typed) if typed.strip().isdecimal() and len(typed) <= 40 else typed
