"""The docs: links lead somewhere, pages keep their sizes, named files exist, and generated text is up to date."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.hub_names import REPOSITORIES
from tests.settings_page import PATH, page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in (
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        ROOT / "deploy" / "README.md",
        *DOCS.rglob("*.md"),
    )
    if path.exists()
)
# A file or folder in backticks: a path with a folder or an extension, and only characters of a path.
NAMED = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+)?|[\w-]+\.(?:py|md|js|toml))`")


def prose(path: Path) -> str:
    """A page without its front matter and its blocks of code."""
    text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"^```.*?^```$|^    [^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(path: Path) -> list[str]:
    """The targets of the page's links and pictures; text in backticks is no link."""
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(path: Path) -> list[str]:
    """The page's links to missing files or headings."""
    missing = []
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    return missing


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in PAGES])
def test_links_lead_to_existing_targets(path: Path) -> None:
    assert broken(path) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading: two\n[a](other.md) [b](#a-heading-two) [c](#nowhere) `[d](e.md)` [f](https://x.org)\n"
    )
    assert broken(page) == ["other.md", "#nowhere"]


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/notes/cpu.md", "docs/notes/tpu.md"])
def test_named_files_exist(name: str) -> None:
    """A path is relative to the repository or to hfjax_app/."""
    named = set(NAMED.findall(prose(ROOT / name)))
    assert named
    assert [
        path for path in sorted(named) if not (ROOT / path).exists() and not (ROOT / "hfjax_app" / path).exists()
    ] == []


def test_the_settings_page_is_up_to_date() -> None:
    assert PATH.read_text() == page(), "`make docs` writes it"


def test_every_repository_that_is_named_is_in_the_list_that_the_hub_is_asked_for() -> None:
    """Stability AI took Stable Diffusion 2 from the hub, and the README's command for pictures ended with an error."""
    command = re.compile(r"(?:MODEL=|LORA=|-model |model: )([A-Za-z0-9][\w-]+/[\w.-]+)")
    files = [*PAGES, *(ROOT / "hfjax_app").rglob("*.py"), *(ROOT / "deploy").iterdir()]
    texts = "\n".join(file.read_text() for file in files)
    single_file = (ROOT / "hfjax_app" / "images" / "single_file.py").read_text()
    configs = re.findall(r'^    "[\w-]+": "([\w-]+/[\w.-]+)",$', single_file, re.MULTILINE)
    assert len(configs) == 8
    named = {name for name in command.findall(texts) if not name.startswith(("owner/", "hfjax_app/"))}
    assert {*named, *configs} <= REPOSITORIES.keys()
    assert [name for name in REPOSITORIES if name not in texts] == []
    assert "stabilityai/stable-diffusion-2" not in texts
