"""The zip file of a gallery, without a page."""

import zipfile
from pathlib import Path

import pytest

from hfjax_app.errors import RequestRejected
from hfjax_app.studio import files as picture_files
from hfjax_app.studio.files import MadeFiles, PictureFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PictureFiles:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    made = MadeFiles()
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "DDIM-7.png"  # seeds repeat, and so do names
        file.write_bytes(name.encode() * 600_000)
        made.add(str(file))
    return PictureFiles(made)


def test_an_archive_has_the_pictures_in_order(files: PictureFiles, tmp_path: Path) -> None:
    """Only those that were made here: a page could ask for any file of the server."""
    foreign = tmp_path / "foreign.png"
    foreign.write_bytes(b"secret")
    asked = [str(tmp_path / name / "DDIM-7.png") for name in ("b", "a", "gone")]
    with zipfile.ZipFile(files.archive([*asked, str(foreign)])) as archive:
        assert archive.namelist() == ["01-DDIM-7.png", "02-DDIM-7.png"]
        assert archive.read("01-DDIM-7.png")[:1] == b"b"


def test_an_archive_is_bounded(files: PictureFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [str(tmp_path / name / "DDIM-7.png") for name in ("a", "b")]
    monkeypatch.setattr(picture_files, "GALLERY_ARCHIVE_BYTES", 1 << 20)
    with pytest.raises(RequestRejected, match=r"pictures of 1\.1 MB: at most 1 MB in a zip file"):
        files.archive(asked)
    with pytest.raises(RequestRejected, match="no pictures"):
        files.archive([str(tmp_path / "gone.png")])
    assert list(tmp_path.glob("*.zip")) == []
