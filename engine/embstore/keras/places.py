"""The place of a loaded or cloned model's tables: the one in its configuration, or another."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

from embstore.errors import InvalidArgumentError
from embstore.keras.descriptions import from_description
from embstore.keras.optimizers import rule_from_description
from embstore.options import EmbeddingVariableOption, StorageOption

__all__ = ["arguments_of_copy", "rows_at"]


class _Place(NamedTuple):
    """The place of a table's rows. See `embstore.get_embedding_variable` for the numbers."""

    ev_option: EmbeddingVariableOption
    partition_num: int
    shards: int | None


_current_place: ContextVar[StorageOption | str | None] = ContextVar("rows_at", default=None)


@contextlib.contextmanager
def rows_at(place: str | os.PathLike[str] | StorageOption) -> Iterator[None]:
    """Returns a context manager in which loaded and cloned models get their tables in this process,
    at `place` instead of where the model was saved from.

        with embstore.keras.rows_at("/mnt/ssd/copy"):
            copy = keras.models.load_model("model.keras")

    A model from somebody else then creates nothing at its author's paths and starts no servers, and
    a model whose tables this process holds open can be loaded again. Shards become partitions.

    place: a folder for the files of the tables' tiers; or a StorageOption, which replaces that of
        every table.
    """
    if not isinstance(place, (str, os.PathLike, StorageOption)) or place == "":
        raise InvalidArgumentError(
            f"place must be a folder or an embstore.StorageOption, got {place!r}"
        )
    chosen = place if isinstance(place, StorageOption) else os.fspath(place)
    before = _current_place.set(chosen)
    try:
        yield
    finally:
        _current_place.reset(before)


def arguments_of_copy(config: dict[str, Any], initializer: str) -> dict[str, Any]:
    """Returns the arguments for a layer or table that is made from a model's configuration.

    initializer: the name of the initializer argument.
    """
    arguments = {name: from_description(config[name]) for name in (initializer, "ev_option")}
    rule = rule_from_description(config["optimizer"])
    option = arguments["ev_option"] or EmbeddingVariableOption()
    saved = _Place(option, config.get("partition_num", 1), config.get("shards"))
    place = _place_of_copy(config["name"], saved)
    return {**config, **arguments, "optimizer": rule, **place._asdict()}


def _place_of_copy(name: str, saved: _Place) -> _Place:
    """Returns the place of a table that is made from a model's configuration.

    Warns if that is a path, or servers, that only the configuration names.
    """
    chosen = _current_place.get()
    storage = saved.ev_option.storage_option
    if chosen is not None:
        storage = chosen if isinstance(chosen, StorageOption) else _moved(storage, chosen)
        option = replace(saved.ev_option, storage_option=storage)
        return _Place(option, saved.shards or saved.partition_num, None)
    folders = _folders(storage)
    if folders or saved.shards is not None:
        where = f"in {' and '.join(folders)}" if folders else "in memory"
        servers = "" if saved.shards is None else f", on {saved.shards} servers"
        warnings.warn(
            f"{name}: this model's configuration has its rows {where}{servers}, where they are "
            "made on first use; load it in `with embstore.keras.rows_at(folder):` to have them "
            "elsewhere",
            stacklevel=2,
        )
    return saved


def _folders(storage: StorageOption) -> list[str]:
    path = storage.storage_path
    if path is None or isinstance(path, (str, os.PathLike)):
        path = [path]
    return sorted({os.fspath(entry) for entry in path if entry is not None})


def _moved(storage: StorageOption, folder: str) -> StorageOption:
    """Returns the option with its files in `folder`. Tiers without files stay as they are."""
    path = storage.storage_path
    if path is None:
        return storage
    if isinstance(path, (str, os.PathLike)):
        return replace(storage, storage_path=folder)
    return replace(storage, storage_path=[entry and folder for entry in path])
