"""Files that are made for visitors, and Gradio's sweep of them."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from gradio.route_utils import delete_files_created_by_app

from hfjax_app.studio import files as files_module
from hfjax_app.studio.files import MadeFiles


def test_files_that_are_made_during_a_sweep_do_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio iterates over a set in a thread. A set that grew meanwhile ended all deletion until the next start."""
    files = MadeFiles()
    page = SimpleNamespace(blocks={}, temp_file_sets=[files])
    for number in range(4):
        path = tmp_path / str(number)
        path.touch()
        files.add(str(path))
    remove, added = os.remove, []

    def remove_and_add(path: str) -> None:
        remove(path)
        maker = threading.Thread(target=files.add, args=(f"{path}-new",))
        maker.start()
        maker.join()
        added.append(f"{path}-new")

    monkeypatch.setattr(os, "remove", remove_and_add)
    delete_files_created_by_app(page, age=None)
    assert list(tmp_path.iterdir()) == []
    assert files == set(added)


def test_old_previews_are_deleted_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(files_module.time, "monotonic", lambda: clock.now)
    files = MadeFiles()
    for clock.now, name in ((0, "a"), (1, "b"), (40, "a"), (62, "c")):
        (tmp_path / name).touch()
        files.add_brief(str(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}, "a was made again"
    assert files == {str(tmp_path / "a"), str(tmp_path / "c")}
    clock.now = 200
    (tmp_path / "a").unlink()  # by the sweep
    (tmp_path / "d").touch()
    files.add_brief(str(tmp_path / "d"))
    assert {path.name for path in tmp_path.iterdir()} == {"d"}


def test_the_remains_of_interrupted_uploads_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    older = tmp_path / "tmpolder"
    older.touch()
    os.utime(older, (0, 0))
    files = MadeFiles()
    (tmp_path / "tmpabc123").touch()
    delete_files_created_by_app(SimpleNamespace(blocks={}, temp_file_sets=[files]), age=None)
    assert [*tmp_path.iterdir()] == [older], "another process's, perhaps"
