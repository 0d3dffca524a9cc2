"""Settings of glibc's allocator: it keeps the large blocks that XLA on a CPU allocates on every call.

Does not set environment variables; the Makefile does.
"""

import ctypes
import os

# mallopt's parameter numbers, from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

# Few, because each arena keeps its freed blocks; but XLA's compiler allocates in many threads, and with one arena for
# all of them it takes a third longer.
_ARENAS_PER_CORE = 2


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks instead of returning them to the kernel.

    XLA on a CPU allocates every temporary with malloc on every call. By default glibc maps and unmaps large blocks, and
    the page faults cost more than the arithmetic. The settings affect later allocations only. Outside the main thread
    blocks of 64 MiB and more, as for large pictures, are still mapped: an arena there holds no larger ones. With
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment such a fault maps 2 MiB, where Linux offers huge pages on
    request; a running process can't set that. Does nothing where the C library has no mallopt (musl, macOS).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1))
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
