"""glibc's allocator, set so that it keeps the large blocks that XLA on a CPU allocates on every call."""

import ctypes
import os

# mallopt's parameter numbers, from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

# Few, because each keeps what was freed in it; but XLA's compiler allocates in many threads, and where they all share
# one arena it takes a third longer.
_ARENAS_PER_CORE = 2


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks instead of handing them back to the kernel.

    XLA on CPU allocates every temporary with malloc on every call. By default glibc maps and unmaps large ones, and the
    page faults cost more than the arithmetic. The settings act on what is allocated afterwards. Blocks of 64 MiB and
    more, such as large pictures need, are still mapped outside the main thread: an arena holds no larger ones there.
    With GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment that is 2 MiB for each fault, where Linux has such
    pages for who asks; a process can't choose that for itself. Does nothing where the C library has no mallopt (musl,
    macOS).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1))
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
