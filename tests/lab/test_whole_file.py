"""write_whole replaces a file completely or not at all, and keeps links, pipes and devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pmemlab.whole_file import write_whole


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for text in ("one", "another"):
        write_whole(path, text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to("page.html")
    write_whole(tmp_path / "newest", "text")
    assert (tmp_path / "newest").is_symlink()
    assert (tmp_path / "page.html").read_text() == "text"


def test_text_for_a_pipe_is_written_into_the_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


PRINTS_AROUND = """
import sys
from pathlib import Path
from pmemlab.whole_file import write_whole
print("before")
write_whole(Path(sys.argv[1]), "text\\n")
print("after")
"""


def _print_around(path: str, stdout: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-c", PRINTS_AROUND, path]
    return subprocess.run(argv, stdout=stdout, env=environment, text=True, check=True)


def test_text_for_a_piped_stdout_is_written_in_order() -> None:
    assert _print_around("/dev/stdout", subprocess.PIPE).stdout == "before\ntext\nafter\n"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_file_that_stdout_is_redirected_to_has_the_printed_text_too(
    tmp_path: Path, by_name: bool
) -> None:
    path = tmp_path / "out.txt"
    with path.open("w") as out:
        _print_around(str(path) if by_name else "/dev/stdout", out.fileno())
    assert path.read_text() == "before\ntext\nafter\n"
    assert list(tmp_path.iterdir()) == [path]


def test_text_for_a_pipe_s_descriptor_is_written_into_the_pipe() -> None:
    reads, writes = os.pipe()
    try:
        write_whole(Path(f"/dev/fd/{writes}"), "text")
        assert os.read(reads, 100) == b"text"
    finally:
        os.close(reads)
        os.close(writes)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()
