"""The address that a server is given, and checks that the server can use it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from embstore.cluster.ray.cluster import LOOPBACK
from embstore.cluster.ray.head_probe import host_and_port
from embstore.errors import EmbStoreError, InvalidArgumentError

__all__ = ["BindAddress"]

_FLAG = "--bind_ip"


@dataclass(frozen=True)
class BindAddress:
    ip: str
    port: int | None  # None: not given

    @classmethod
    def of(cls, text: str) -> BindAddress:
        """Parses "IP" or "IP:PORT". Raises InvalidArgumentError if it can't be an address here."""
        ip, port = host_and_port(_FLAG, text) if ":" in text else (text, None)
        try:
            parsed = ipaddress.IPv4Address(ip)
        except ValueError:
            raise InvalidArgumentError(
                f"{_FLAG} must be an IPv4 address, with or without :PORT, got {text!r}"
            ) from None
        if parsed.is_unspecified:
            raise InvalidArgumentError(
                f"{_FLAG}: {ip} is every interface; give the one address that workers and other "
                "servers reach this computer by"
            )
        if parsed.is_loopback and ip != LOOPBACK:
            raise InvalidArgumentError(
                f"{_FLAG}: Ray doesn't keep to {ip}, and would listen on every interface; give "
                f"{LOOPBACK}"
            )
        return cls(ip, port)

    @property
    def is_loopback(self) -> bool:
        return self.ip == LOOPBACK

    def check_free(self) -> None:
        """Raises EmbStoreError if the address isn't this computer's, or its port is in use."""
        self._bind(self.ip, 0)
        if self.port is not None:
            # With any other address, Ray listens on every interface.
            self._bind(self.ip if self.is_loopback else "", self.port)

    def _bind(self, ip: str, port: int) -> None:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((ip, port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    why = "isn't an address of this computer; see `ip address` for those it has"
                elif error.errno == errno.EADDRINUSE:
                    why = f"port {port} is in use here; give another one, or end what has it"
                else:
                    why = f"can't be bound to: {error.strerror}"
                raise EmbStoreError(f"{_FLAG}: {self.ip}: {why}") from error
