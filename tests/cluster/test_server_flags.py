"""Bad flags raise an error that names the flag and says what to do, before anything starts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embstore.cluster.ray.head_probe import check_answers
from embstore.errors import EmbStoreError, InvalidArgumentError
from embstore.server.__main__ import main
from embstore.server.bind_address import BindAddress


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bind_ip", "somewhere"], "--bind_ip must be an IPv4 address"),
        (["--bind_ip", "127.0.0.1:"], "--bind_ip must be IP:PORT, got '127.0.0.1:'"),
        (["--bind_ip", "127.0.0.1:70000"], "--bind_ip must be IP:PORT"),
        (["--bind_ip", "0.0.0.0:6379"], "0.0.0.0 is every interface; give the one address"),
        (["--bind_ip", "127.0.0.2:6379"], "would listen on every interface; give 127.0.0.1"),
        (["--bind_ip", "198.51.100.7"], "198.51.100.7: isn't an address of this computer"),
        (["--pmem", "/not/there"], "--pmem: /not/there isn't a directory"),
        (["--pmem", __file__], "isn't a directory; give one on the mount"),
        (["--pmem", ""], "--pmem must name a directory, got ''"),
        (["--cache_size", "100"], "--cache_size is of the DRAM in front of --pmem; give that too"),
        (["--pmem", "/tmp", "--cache_size", "0"], "--cache_size must be at least 1048576 bytes"),
        (["--master_endpoint", "127.0.0.1"], "--master_endpoint must be IP:PORT"),
        (["--master_endpoint", "198.51.100.7:6379"], "can't reach each other; give addresses of"),
        (["--master_endpoint", "127.0.0.1:1"], "nothing can be reached at 127.0.0.1:1 .*refused"),
        (["status", "--master_endpoint", "127.0.0.1:1"], "--master_endpoint: nothing can be"),
        (["status", "--timeout", "-1"], "--timeout must be greater than 0"),
        (["status", "--timeout", "nan"], "--timeout must be finite"),
        (["status", "--timeout", "inf"], "--timeout must be finite"),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], message: str) -> None:
    if flags[0] == "status":
        pytest.importorskip("ray", reason="needs Ray: pip install 'embstore[cluster]'")
    with pytest.raises(SystemExit, match=rf"(?s)^embstore.server: .*{message}"):
        main(flags)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EmbStoreError, match=f"--bind_ip: 127.0.0.1: port {port} is in use"):
            BindAddress.of(f"127.0.0.1:{port}").check_free()


def test_a_pmem_that_cant_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # because root may write anywhere
    with pytest.raises(SystemExit, match="--pmem: this user can't write to"):
        main(["--pmem", str(tmp_path)])


@contextlib.contextmanager
def answering(words: bytes | None) -> Iterator[str]:
    """Yields the address of a server that sends `words` to its first client; None: it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(words or b"")

        if words is not None:
            threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_master_that_is_stopped_is_not_waited_for() -> None:
    with answering(None) as address:
        began = time.monotonic()
        with pytest.raises(EmbStoreError, match=f"--x: nothing answers at {address} within 0.2 s"):
            check_answers("--x", address, within_s=0.2)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_master_that_is_no_ray_head_is_refused(words: bytes) -> None:
    with (
        answering(words) as address,
        pytest.raises(EmbStoreError, match=f"--x: what answers at {address} is no Ray head"),
    ):
        check_answers("--x", address, within_s=5)


def test_a_bad_ray_address_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="RAY_ADDRESS must be IP:PORT"):
        check_answers("RAY_ADDRESS", "127.0.0.1:port")
