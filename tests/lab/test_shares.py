"""The files of this computer that a guest can read, and those that it can't."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from pmemlab.machines.guest import shares
from pmemlab.machines.guest.shares import Share, guest_root, shared_folders

CLONE = Path(__file__).parents[2]


def _seen(path: str | Path) -> bool:
    """Returns whether a guest can open this path of this computer."""
    path = Path(path)
    return any(path.is_relative_to(share.path) for share in shared_folders())


def test_a_guest_sees_programs_the_project_and_its_python() -> None:
    assert _seen("/usr/bin/env")
    assert _seen(CLONE / "scenarios")
    assert _seen(Path(sys.prefix) / "lib")
    assert _seen(os.path.realpath(sys.executable))


@pytest.mark.parametrize(
    "path",
    ["/", "/root/.ssh/id_rsa", "/home/someone/.netrc", "/etc/shadow", "/var/lib/secret", "/proc/1",
     "/tmp/secret", "/run/secrets", "/srv", "/mnt"],
)  # fmt: skip
def test_a_guest_sees_nothing_else(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Wherever the tests run, the project and Python seem to lie outside these folders.
    monkeypatch.setattr(shares, "package_folders", lambda: [Path("/opt/project/pmemlab")])
    monkeypatch.setattr(sys, "prefix", "/opt/python")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "path", ["", str(Path.home()), "/opt/python/site-packages"])
    assert not _seen(path)


def test_a_guest_sees_only_the_environment_and_the_clone_of_a_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone, environment = tmp_path / "work/clone", tmp_path / "venv"
    (clone / "lab/pmemlab").mkdir(parents=True)
    (clone / "compose.yaml").touch()
    site = tmp_path / ".local/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    environment.mkdir()
    monkeypatch.setattr(shares, "package_folders", lambda: [clone / "lab/pmemlab"])
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(site)])
    inside = {s.path for s in shared_folders() if s.path.is_relative_to(tmp_path)}
    assert inside == {clone, environment, site}


def test_a_folder_named_by_a_link_is_shared_under_both_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "link"))
    assert _seen(tmp_path / "link/bin")
    assert _seen(tmp_path / "real/bin")


def test_a_guest_s_etc_has_only_files_that_programs_need_and_all_users_may_read() -> None:
    entries = guest_root(shared_folders())
    names = {name.removeprefix("skeleton/etc/") for name in entries if "/etc/" in name}
    assert {"ld.so.cache", "passwd", "group"} <= names
    assert not names & {"shadow", "gshadow", "sudoers", "ssh", "ssl", "hostname", "fstab"}
    assert b"root" in entries["skeleton/etc/passwd"][1]
    users = entries["skeleton/etc/passwd"][1].splitlines()
    assert len(users) == 2  # not this computer's


def test_files_that_only_root_may_read_are_not_copied_into_a_guest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "profile.d").mkdir()
    (tmp_path / "profile.d/token.sh").write_text("secret")
    (tmp_path / "profile.d/token.sh").chmod(0o600)
    (tmp_path / "profile.d/colours.sh").write_text("colours")
    monkeypatch.setattr(shares, "_ETC", (f"../{tmp_path}/profile.d",))
    names = [Path(name).name for name in guest_root([])]
    assert "colours.sh" in names
    assert "token.sh" not in names


def test_every_folder_of_the_archive_comes_before_its_contents() -> None:
    seen: set[str] = set()
    for name, (mode, _) in guest_root(shared_folders()).items():
        parent = str(Path(name).parent)
        assert parent in seen | {"."}, name
        if stat.S_ISDIR(mode):
            seen.add(name)


def test_root_s_home_exists_and_is_empty() -> None:
    entries = guest_root(shared_folders())
    assert entries["skeleton/root"] == (stat.S_IFDIR | 0o700, b"")
    assert not [name for name in entries if name.startswith("skeleton/root/")]


def test_a_read_only_share_shows_modes_unchanged() -> None:
    assert Share("share0", Path("/usr")).qemu_options() == "security_model=none,readonly=on"


@pytest.mark.parametrize(("keeps", "model"), [(True, "mapped-xattr"), (False, "mapped-file")])
def test_a_guest_cannot_choose_the_mode_or_kind_of_a_file_that_it_writes(
    keeps: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setxattr(*_: object) -> None:
        if not keeps:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", setxattr)
    options = Share("results", tmp_path, writable=True).qemu_options()
    assert options == f"security_model={model},fmode=0644,dmode=0755"
    assert not [*tmp_path.iterdir()]
