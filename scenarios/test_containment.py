"""A guest started by root sees only those files of this computer that it needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pmemlab.machines.protocol import Machine

pytestmark = pytest.mark.long

# Looks for the files by their paths, and by their names in the guest's own root; and mounts every
# 9p share that is not mounted yet.
_SEARCH = r"""
for path; do
  cat "$path" 2>/dev/null
  find / -xdev -name "$(basename "$path")"
done
for device in /sys/bus/virtio/drivers/9pnet_virtio/virtio*; do
  tag=$(tr -d '\0' < "$device/mount_tag")
  mkdir -p "/tmp/shares/$tag"
  mount -t 9p -o trans=virtio,version=9p2000.L,ro "$tag" "/tmp/shares/$tag" 2>/dev/null || continue
  echo "the share $tag is for anyone to mount"
  umount "/tmp/shares/$tag"
done
"""
_FOLDERS = ("/root", "~", "/var/tmp", "/tmp", "/etc", "/run")


@pytest.fixture
def secret_files() -> Iterator[list[Path]]:
    """Files of this computer that the user who runs the guest can read."""
    files = []
    for folder in dict.fromkeys(Path(name).expanduser() for name in _FOLDERS):
        path = folder / f"pmemlab-secret-{secrets.token_hex(8)}"
        with suppress(OSError):  # not every user may write everywhere
            path.write_text("a secret\n")
            files.append(path)
    yield files
    for path in files:
        path.unlink()


@pytest.mark.pmemlab("dram")
def test_a_guest_finds_no_secret(machine: Machine, secret_files: list[Path]) -> None:
    if machine.kind == "process":
        pytest.skip("a process is this computer, and sees all of it")
    assert len(secret_files) >= 3
    done = machine.run(["sh", "-c", _SEARCH, "search", *map(str, secret_files)], timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.pmemlab("dram")
def test_a_guest_can_t_write_to_this_computer(machine: Machine) -> None:
    if machine.kind == "process":
        pytest.skip("a process is this computer, and writes to it")
    mine = Path(__file__).with_name(f"written-by-a-guest-{secrets.token_hex(4)}")
    machine.run(["touch", str(mine)], timeout=60)
    assert not mine.exists()
    done = machine.run(["sh", "-c", 'touch "$HOME/mine" && test -d "$HOME"'], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
