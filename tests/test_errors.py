"""Error messages for visitors of the app."""

import pytest

from hfjax_app.errors import without_folders


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("model '/home/ada/models/tiny' has no weights", "model 'tiny' has no weights"),
        ("downloads go to /home/ada/.cache/huggingface/hub: make room there", "downloads go to hub: make room there"),
        ("[Errno 13] Permission denied: '/srv/tiny/config.json'", "[Errno 13] Permission denied: 'config.json'"),
        ("~/models/tiny is a file, path=/data/tiny (/data)", "tiny is a file, path=tiny (data)"),
        (
            "accept its licence on https://huggingface.co/owner/name",
            "accept its licence on https://huggingface.co/owner/name",
        ),
        (
            "a hub id looks like owner/name, and/or 1/2 of 4.5 / 6",
            "a hub id looks like owner/name, and/or 1/2 of 4.5 / 6",
        ),
    ],
)
def test_no_message_names_a_folder(message: str, shown: str) -> None:
    assert without_folders(message) == shown
