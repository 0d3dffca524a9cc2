"""The progress of uploads: what clients name is not kept for ever."""

import asyncio
from contextlib import suppress

import pytest

from hfjax_app.limits import UPLOADS_WATCHED
from hfjax_app.runtime.seams.gradio import UploadProgress


async def waited(progress: UploadProgress, upload: str) -> bool:
    with suppress(TimeoutError):
        return await asyncio.wait_for(progress.is_tracked(upload), 0.01)
    return False


def test_nothing_is_kept_of_questions_and_old_uploads() -> None:
    """Gradio kept 50 KB for each question for an upload that never was, and each upload that no page asked for."""

    async def use() -> None:
        progress = UploadProgress()
        assert not any(await asyncio.gather(*(waited(progress, f"none{number}") for number in range(300))))
        assert (len(progress._waiting), len(progress._signals)) == (0, 0)
        for number in range(2 * UPLOADS_WATCHED):
            progress.append(f"upload{number}", "file", b"content")
        assert len(progress._statuses) == UPLOADS_WATCHED
        assert [await waited(progress, f"upload{number}") for number in (0, UPLOADS_WATCHED)] == [False, True]

    asyncio.run(use())


def test_one_page_waits_for_an_upload() -> None:
    """Each stream looks twenty times a second, and a thousand of them asked for one upload."""

    async def use() -> None:
        progress = UploadProgress()
        first = asyncio.create_task(progress.is_tracked("upload"))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await progress.is_tracked("upload")
        progress.append("upload", "file", b"content")
        assert await first
        with pytest.raises(TimeoutError):
            await progress.is_tracked("upload")
        progress.stop_tracking("upload")
        progress.append("upload", "file", b"content")
        assert await waited(progress, "upload")

    asyncio.run(use())
