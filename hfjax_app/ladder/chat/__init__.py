"""The rungs of a text, from the bottom: eager_dynamic, eager_static, one_step, several_steps, slots; and of a forward:
one_device, several_devices.

Each module has a function `prepare(task)`. It does what is done once, and returns a function that makes the text and
yields its tokens as they are made. All are greedy and go on after an end token, so that all make the same tokens.
"""
