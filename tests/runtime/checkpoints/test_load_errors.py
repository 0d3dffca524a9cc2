"""Messages for errors of libraries; those of the hub are tested through a hub, in `test_hub.py`."""

import errno

from hfjax_app.runtime.checkpoints.load_errors import explain


def test_a_full_disk_says_where_and_what_to_do() -> None:
    """The hub's client wraps the operating system's error."""
    error = RuntimeError("download failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert "the disk is full; downloads go to" in explain("owner/large", error)
    assert "HF_HOME" in explain("owner/large", error)
