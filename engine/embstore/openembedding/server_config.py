"""Reads the settings of the servers from `flags.config`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embstore.errors import InvalidArgumentError, MissingLibraryError, UnsupportedError
from embstore.table import checks

__all__ = ["ServerConfig", "server_config"]

_MIB = 1 << 20
_CACHE_BYTES = 1024 * _MIB  # OpenEmbedding's own default
_POOL_TO_CACHE = 8

# OpenEmbedding's other fields: the value that asks for nothing, and what to do instead.
_NO_MEANING = {
    "message_compress": ("", "rows go over the network as they are; leave it out"),
    "server_dump_files": (1, "each shard writes one file; for more of them give more num_shards"),
    "recv_timeout": (-1, "a shard that can't be reached is an error at once; leave it out"),
    "report_interval": (-1, "ask variable.stats() instead, and leave it out"),
    "update_early_return": (True, "an update is over when it returns; leave it out"),
}
_OTHER_SECTIONS = {
    "master": "set flags.master_endpoint instead",
    "rpc": "rows go over TCP, at the addresses that Ray has for its nodes; leave it out",
}


@dataclass(frozen=True)
class ServerConfig:
    """The fields of the section "server", which say where rows are kept.

    pmem_pool_root_path: a folder on a DAX mount for the pools; None: rows are in DRAM.
    cache_bytes: a server's DRAM cache, for all tables of a model together; given as `cache_size` in
        MB, of 1024 * 1024 bytes, or with a unit, such as "4G".
    pool_bytes: size of a server's pools together; given as `pmem_pool_size` in the same form.
        OpenEmbedding has no such field.
    checkpoint_path: the folder that lists the pools' checkpoints; by default a folder in the
        pools'. If the servers are on several computers, they and this process must share it.
        OpenEmbedding has no such field either.
    """

    pmem_pool_root_path: str | None
    cache_bytes: int
    pool_bytes: int
    checkpoint_path: str | None


def server_config(text: str) -> ServerConfig:
    """Reads `flags.config`. Raises an error that names a field that is wrong or has no meaning."""
    sections = _mapping("flags.config", _parsed(text))
    for section in sections:
        if section in _OTHER_SECTIONS:
            raise UnsupportedError(f"flags.config: {section}: {_OTHER_SECTIONS[section]}")
        if section != "server":
            raise InvalidArgumentError(
                f'flags.config has {section!r}, which isn\'t known; its only section is "server"'
            )
    server = dict(_mapping("flags.config: server", sections.get("server")))
    root = _path("pmem_pool_root_path", server)
    checkpoint_path = _path("checkpoint_path", server)
    for name in ("cache_size", "pmem_pool_size"):
        if name in server and root is None:
            raise InvalidArgumentError(
                f"flags.config: server.{name} speaks of pools on persistent memory; give their "
                "folder as server.pmem_pool_root_path too, or leave it out"
            )
    cache_bytes = _bytes("cache_size", server) or _CACHE_BYTES
    pool_bytes = _bytes("pmem_pool_size", server) or _POOL_TO_CACHE * cache_bytes
    if server.pop("server_concurrency", None) is not None:
        warnings.warn(
            "flags.config: server.server_concurrency has no effect here: a shard answers each "
            "connection in a thread of its own",
            stacklevel=2,
        )
    for name, value in server.items():
        if name not in _NO_MEANING:
            raise InvalidArgumentError(
                f"flags.config: server.{name} isn't known; known are pmem_pool_root_path, "
                "cache_size, pmem_pool_size, checkpoint_path and server_concurrency"
            )
        default, hint = _NO_MEANING[name]
        if value != default:
            raise UnsupportedError(f"flags.config: server.{name}={value!r}: {hint}")
    return ServerConfig(root, cache_bytes, pool_bytes, checkpoint_path)


def _parsed(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except json.JSONDecodeError as not_json:
        try:
            import yaml
        except ImportError as error:
            raise MissingLibraryError(
                f"flags.config isn't JSON ({not_json}), and YAML needs PyYAML: pip install pyyaml"
            ) from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidArgumentError(f"flags.config is neither JSON nor YAML: {error}") from None


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{what} must be a mapping, got {value!r}")
    return value


def _path(name: str, server: dict[str, Any]) -> str | None:
    path = server.pop(name, "")
    if not isinstance(path, str):
        raise InvalidArgumentError(f"flags.config: server.{name} must be a string, got {path!r}")
    return path or None


def _bytes(name: str, server: dict[str, Any]) -> int | None:
    """Returns the bytes of a field in MB, or with a unit; None if it isn't given."""
    if name not in server:
        return None
    size, field = server.pop(name), f"flags.config: server.{name}"
    if isinstance(size, str) and not size.isdecimal():
        return checks.size(field, size, at_least=_MIB)
    megabytes = int(size) if isinstance(size, str) else size
    return checks.integer(field, megabytes, at_least=1, unit="MB") * _MIB
