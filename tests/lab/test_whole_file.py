"""A file is written whole or not at all, and what is no file isn't replaced by one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pmemlab.whole_file import write_whole


def test_a_file_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for text in ("one", "another"):
        write_whole(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to("page.html")
    write_whole(tmp_path / "newest", "text")
    assert (tmp_path / "newest").is_symlink()
    assert (tmp_path / "page.html").read_text() == "text"


def test_what_is_written_to_a_pipe_goes_there(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()
