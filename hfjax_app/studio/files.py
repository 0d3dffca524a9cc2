"""Files that the studio makes for its visitors and that Gradio deletes after some time: previews, contact sheets,
finished pictures, and several of them in one archive.
"""

import math
import threading
import time
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile

from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.steps import ImageStep, Picture, Waiting
from hfjax_app.images.verification import Comparison
from hfjax_app.limits import GALLERY_ARCHIVE_BYTES
from hfjax_app.runtime.seams.gradio import get_upload_folder, save_bytes_to_cache, save_pil_to_cache

BRIEFLY_S = 60  # enough for a page on a slow line to fetch a preview


class MadeFiles(set[str]):
    """The paths of these files, as one of the sets that Gradio sweeps (`Blocks.temp_file_sets`).

    A component's own set does not do: Gradio sweeps it only until the first event updates the component. A plain set
    does not do either: Gradio iterates over it in a thread, and a file that is added meanwhile would raise an error,
    after which Gradio deletes nothing any more. Iterating over this set also yields the remains of interrupted uploads,
    which Gradio does not delete.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started = int(time.time() - 1)  # a file's time may lag some milliseconds behind
        self._brief: dict[str, float] = {}  # path -> when the file was made, the oldest first
        self._changing = threading.Lock()

    def add_brief(self, path: str) -> None:
        """Add a file that is needed for BRIEFLY_S only, such as a preview. Each call deletes the older ones.

        Files of the same content have the same path, so a file that is made again counts as new.
        """
        now = time.monotonic()
        with self._changing:
            self._brief.pop(path, None)
            self._brief[path] = now
            self.add(path)
            while (oldest := next(iter(self._brief))) != path and now - self._brief[oldest] > BRIEFLY_S:
                del self._brief[oldest]
                self.discard(oldest)
                Path(oldest).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        return chain(set.__iter__(self.copy()), self._interrupted_uploads())

    def _interrupted_uploads(self) -> Iterator[str]:
        """Partial files since this process started. They have the names of Python's temporary files."""
        for path in Path(get_upload_folder()).glob("tmp*"):
            try:
                if path.is_file() and path.stat().st_mtime >= self._started:
                    yield str(path)
            except FileNotFoundError:  # the upload is complete, and its file was renamed
                pass


REDRAW_S = 0.1  # the least time between two previews on a page


class PictureFiles:
    """Makes them in Gradio's cache, from which the page loads them.

    The methods run in the thread that draws, or another one: previews need the device, and encoding PNG takes too long
    for the event loop, which serves all visitors.

    Args:
        listing: lists the files, for their deletion.
    """

    def __init__(self, listing: MadeFiles):
        self._listing, self._folder = listing, get_upload_folder()

    def has(self, path: str) -> bool:
        """Whether this file was made here and still exists."""
        return path in self._listing and Path(path).exists()

    def of(
        self, steps: Generator[ImageStep | Waiting | Comparison, None, None]
    ) -> Generator[tuple[ImageStep | Waiting | Comparison, str | None, Sequence[str]], None, None]:
        """Each step with the file of its contact sheet and the files of finished pictures.

        A step within REDRAW_S of the last shown one gets no sheet, because the previews of a fast model take longer
        than its steps.
        """
        shown_at = -math.inf
        with closing(steps):
            for step in steps:
                sheet: str | None = None
                files: list[str] = []
                if isinstance(step, ImageStep):
                    if step.is_last:
                        files = [self._picture(picture) for picture in step.pictures]
                    if len(files) == 1:
                        [sheet] = files  # the downloaded file then has its parameters inside
                    elif step.is_last or time.monotonic() >= shown_at + REDRAW_S:
                        sheet = self._sheet(step)
                yield step, sheet, files
                if sheet is not None:
                    shown_at = time.monotonic()

    def archive(self, files: Sequence[str]) -> str:
        """A zip file of finished pictures, numbered in this order. They are PNG, so they are not compressed again.

        Raises:
            RequestRejected: there are none, or they are too large together.
        """
        found = [Path(file) for file in files if self.has(file)]
        size = sum(path.stat().st_size for path in found)
        if not found:
            raise RequestRejected("no pictures: draw one first; those of yesterday were deleted")
        if size > GALLERY_ARCHIVE_BYTES:
            most = GALLERY_ARCHIVE_BYTES >> 20
            raise RequestRejected(
                f"pictures of {size / (1 << 20):.1f} MB: at most {most} MB in a zip file; save them one by one"
            )
        with NamedTemporaryFile(dir=self._folder, prefix="pictures-", suffix=".zip", delete=False) as file:
            self._listing.add_brief(file.name)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for number, path in enumerate(found, 1):
                    archive.write(path, f"{number:02}-{path.name}")
        return file.name

    def _sheet(self, step: ImageStep) -> str:
        """The file of the step's contact sheet."""
        sheet = contact_sheet(step.previews)
        if step.is_last:  # like the Stable Diffusion web UI, with the parameters of the first picture
            sheet.info["parameters"] = step.pictures[0].parameters.text()
        path: str = save_pil_to_cache(sheet, self._folder, format="png")
        if step.is_last:
            self._listing.add(path)
        else:
            self._listing.add_brief(path)
        return path

    def _picture(self, picture: Picture) -> str:
        """The picture's PNG file, with its parameters inside."""
        png = picture.png
        assert png is not None  # the last step's pictures have one
        name = f"{picture.parameters.values['scheduler']}-{picture.seed}.png".replace(" ", "-").replace("+", "p")
        path: str = save_bytes_to_cache(png, name, self._folder)
        self._listing.add(path)
        return path


def contact_sheet(previews: Sequence[Image.Image]) -> Image.Image:
    """One picture unchanged; several on one sheet, two in a row."""
    if len(previews) == 1:
        return previews[0]
    wide, tall = previews[0].size
    sheet = Image.new("RGB", (2 * wide, math.ceil(len(previews) / 2) * tall), "white")
    for i, picture in enumerate(previews):
        sheet.paste(picture, (i % 2 * wide, i // 2 * tall))
    return sheet
