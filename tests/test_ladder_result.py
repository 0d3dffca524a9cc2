"""The kept result: whole or not at all, bounded, and only of this version."""

from pathlib import Path

import pytest

from hfjax_app.ladder_result import PARTS, LadderResult, PartResult, RungResult, keep, read


def ladder(*parts: str, device: str = "CPU", seconds: float = 2.0) -> LadderResult:
    return LadderResult(
        at="2026-01-02T03:04:05+00:00",
        device=device,
        versions="jax 1",
        parts=tuple(
            PartResult(
                id=part,
                model="chat-gemma",
                dtype="float32",
                amount=50,
                rungs=(RungResult(id=f"{part}.one", first_s=9.0, again_s=seconds, made=50, wanted=50),),
            )
            for part in parts
        ),
    )


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    kept = ladder("chat", "images")
    keep(tmp_path, kept)
    assert read(tmp_path) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["ladder.json"]


def test_parts_that_did_not_run_are_taken_over_from_the_same_device(tmp_path: Path) -> None:
    keep(tmp_path, ladder("chat", "images"))
    keep(tmp_path, ladder("chat", seconds=1.0))
    found = read(tmp_path)
    assert found is not None
    assert [(part.id, part.rungs[0].again_s) for part in found.parts] == [("chat", 1.0), ("images", 2.0)]
    keep(tmp_path, ladder("chat", device="TPU v6 lite"))
    found = read(tmp_path)
    assert found is not None
    assert [part.id for part in found.parts] == ["chat"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2, "at": "", "device": "", "versions": "", "parts": []}',
        b'{"version": 1, "at": "", "device": "", "versions": "", "parts": [], "more": 1}',
        b'{"version": 1, "at": "", "device": "' + b"x" * 400 + b'", "versions": "", "parts": []}',
        b'{"version": 1, "at": "", "device": "", "versions": "", "parts": []}' + b" " * (64 << 10),
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_result_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ladder.json").write_bytes(content)
    assert read(tmp_path) is None


def test_a_rung_that_was_stopped_is_known() -> None:
    assert RungResult(id="a", first_s=10.0, made=5, wanted=50).is_stopped
    assert not RungResult(id="a", first_s=10.0, again_s=1.0, made=50, wanted=50).is_stopped
    assert not RungResult(id="a", note="skipped").is_stopped


def test_every_rung_has_a_function_of_its_name() -> None:
    root = Path(__file__).parents[1] / "hfjax_app" / "ladder"
    rungs = [rung for part in PARTS for rung in part.rungs]
    assert len({rung.id for rung in rungs}) == len(rungs)
    for rung in rungs:
        file, function = rung.code.split(": ")
        assert f"\ndef {function}(task: " in (root / file).read_text()
