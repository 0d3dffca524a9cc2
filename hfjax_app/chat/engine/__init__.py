"""The decoding engine: requests, scheduling, the thread that owns the device, streams of tokens."""
