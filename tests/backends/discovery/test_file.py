"""The watched file: renames, link swaps, half-written content."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from backends.discovery.file import FileSource
from tests.support.discovery import Ticker, running

if TYPE_CHECKING:
    from pathlib import Path

A = "- {name: a, url: http://10.0.0.1:8000}\n"
B = "- {name: b, url: http://10.0.0.2:8000}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "backends.yaml"


def source(path: Path, ticker: Ticker) -> FileSource:
    return FileSource(path, 30.0, random.Random(1), ticker.sleep)


async def test_changes_are_taken(path: Path) -> None:
    path.write_text(A)
    ticker = Ticker(free_below_s=0.25)
    async with running(source(path, ticker)) as seen:
        assert await ticker.asleep() == 30
        assert seen.hosts == ["10.0.0.1"]
        await ticker.tick()
        path.write_text(A)
        await ticker.tick()
        assert len(seen.reports) == 1, "the same content is no news"
        path.write_text(A + B)
        await ticker.tick()
        assert seen.hosts == ["10.0.0.1", "10.0.0.2"]
        path.write_text("[]")
        await ticker.tick()
        assert seen.last == (), "an empty list is what somebody wrote"
        assert not seen.errors


async def test_atomic_renames_and_configmap_link_swaps(tmp_path: Path, path: Path) -> None:
    for version, text in (("v1", A), ("v2", B)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "backends.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("v1")
    path.symlink_to("..data/backends.yaml")
    ticker = Ticker(free_below_s=0.25)
    async with running(source(path, ticker)) as seen:
        await ticker.asleep()
        (tmp_path / "..next").symlink_to("v2")
        (tmp_path / "..next").rename(tmp_path / "..data")
        await ticker.tick()
        assert [found.name for found in seen.last] == ["b"]
        (tmp_path / "new").write_text(A + B)
        (tmp_path / "new").rename(path)
        await ticker.tick()
        assert [found.name for found in seen.last] == ["a", "b"]


async def test_half_written_content_is_not_taken(path: Path) -> None:
    """The half is a valid list: taking it would drain the rest of the fleet."""
    path.write_text(A + B)
    ticker = Ticker()
    async with running(source(path, ticker)) as seen:
        await ticker.tick()
        assert len(seen.last) == 2
        path.write_text(A)
        assert await ticker.tick() < 1, "looked at, and to be looked at again"
        path.write_text(A + "- {name: c, url: http://10.0.0.3:8000}\n")
        assert await ticker.tick() < 1, "it still changes"
        assert len(seen.reports) == 1
        await ticker.tick()
        assert [found.name for found in seen.last] == ["a", "c"]


@pytest.mark.parametrize(
    "content", ["", "- {name: a, url: ", "- {name: a, url: file:///etc/passwd}\n", "x" * 1_000_001]
)
async def test_invalid_content_changes_nothing(path: Path, content: str) -> None:
    path.write_text(A)
    ticker = Ticker(free_below_s=0.25)
    async with running(source(path, ticker)) as seen:
        await ticker.asleep()
        path.write_text(content)
        assert await ticker.tick() < 1, "soon again"
        assert seen.kinds == ["InvalidList"]
        assert str(seen.errors[0]).startswith("backends.yaml:")
        assert str(path.parent) not in str(seen.errors[0])
        assert len(seen.reports) == 1
        path.write_text(A)
        await ticker.tick()
        assert len(seen.reports) == 2, "the answer that makes the error old"


async def test_a_missing_file_changes_nothing(path: Path) -> None:
    ticker = Ticker(free_below_s=0.25)
    async with running(source(path, ticker)) as seen:
        await ticker.asleep()
        assert seen.kinds == ["FileNotFoundError"]
        assert not seen.reports
        path.write_text(A)
        await ticker.tick()
        assert seen.hosts == ["10.0.0.1"]
        path.unlink()
        await ticker.tick()
        path.mkdir()
        await ticker.tick()
        assert seen.kinds == ["FileNotFoundError", "FileNotFoundError", "IsADirectoryError"]
        assert len(seen.reports) == 1
        path.rmdir()
        path.write_text(A)
        await ticker.tick()
        assert len(seen.reports) == 2
