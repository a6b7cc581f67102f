from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gateway.watch import FileWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Watched:
    def __init__(self, *files: Path) -> None:
        self.files = list(files)
        self.seen = 0
        self._changed = asyncio.Event()

    async def note(self) -> None:
        self.seen += 1
        self._changed.set()

    async def change(self) -> None:
        await asyncio.wait_for(self._changed.wait(), 10)
        self._changed.clear()


@contextlib.asynccontextmanager
async def watching(*files: Path) -> AsyncIterator[Watched]:
    watched = Watched(*files)
    task = asyncio.create_task(FileWatch(files).run(lambda: watched.files, watched.note, 0.01))
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_written_a_renamed_and_a_missing_file(tmp_path: Path) -> None:
    file, fresh = tmp_path / "a", tmp_path / "b"
    file.write_text("1")
    async with watching(file) as watched:
        file.write_text("22")
        await watched.change()
        fresh.write_text("33")  # the same size: another file all the same
        fresh.rename(file)
        await watched.change()
        file.unlink()
        await watched.change()
        file.write_text("22")
        await watched.change()
        await asyncio.sleep(0.1)
        assert watched.seen == 4, "nothing is told twice"


async def test_a_symlink_that_is_swapped_two_levels_up(tmp_path: Path) -> None:
    """As the kubelet does it: file -> ..data/file, ..data -> a folder with a time in its name."""
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text("same size")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    async with watching(tmp_path / "config.yaml") as watched:
        (tmp_path / "..tmp").symlink_to("..2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await watched.change()


async def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("")
    looks = 0
    told_at: list[int] = []
    done = asyncio.Event()

    def files() -> list[Path]:
        nonlocal looks
        looks += 1
        if 2 <= looks <= 10:
            file.write_text("x" * looks)
        return [file]

    async def note() -> None:
        told_at.append(looks)
        done.set()

    task = asyncio.create_task(FileWatch(files()).run(files, note, 0.001))
    try:
        await asyncio.wait_for(done.wait(), 10)
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert told_at == [11], "once, at the first look that found it as the one before"


async def test_files_that_come_later_are_watched_from_then_on(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("1")
    second.write_text("1")
    async with watching(first) as watched:
        watched.files.append(second)
        await asyncio.sleep(0.1)
        assert watched.seen == 0, "new in the list is not changed"
        second.write_text("22")
        await watched.change()
