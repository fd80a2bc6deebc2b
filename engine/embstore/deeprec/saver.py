"""`tf.train.Saver`, extended to keep the rows of embedding variables with the other variables.

Beside TensorFlow's files of a checkpoint PREFIX is the folder PREFIX.rows-ID, an `embstore.save`.
TensorFlow's files contain its name, and are put in place when it is whole, so that a checkpoint
always has the rows that were saved for it, even if a process dies. See `increments` for incremental
checkpoints.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from embstore import variable as engine
from embstore.checkpoint.restore import restore
from embstore.checkpoint.save import save, save_incremental
from embstore.deeprec.increments import (
    INCREMENT,
    increments_folder,
    increments_of,
    restores_increments,
)
from embstore.deeprec.rows_folder import using_rows_folder
from embstore.deeprec.sessions import table_numbers
from embstore.deeprec.tables import NO_TABLE, table_of
from embstore.deeprec.tensorflow_inside import (
    checkpoint_prefix,
    objects_of_saver,
    objects_of_saver_by_name,
    saver_module,
)
from embstore.deeprec.variable import EmbeddingVariable, has_imported_variables
from embstore.errors import CheckpointError, InvalidArgumentError, UnsupportedError

__all__ = ["Saver"]

_ROWS = re.compile(r"[^/]+\.rows-[0-9a-f]{8}")

# Maps a table's number to the rows of the checkpoint that its last save, full or incremental,
# belongs to. A failed save leaves no entry.
_last_full: dict[int, Path] = {}


class Saver(saver_module.Saver):  # type: ignore[misc]
    """TensorFlow's Saver, whose checkpoints also have the rows of embedding variables.

    incremental_save_restore: True: `restore` also applies the incremental checkpoints that follow
        the restored one. Every saver can make them (`incremental_save`).
    """

    def __init__(
        self, *arguments: Any, incremental_save_restore: bool = False, **options: Any
    ) -> None:
        self._restores_increments = incremental_save_restore
        super().__init__(*arguments, **options)

    def save(
        self, sess: Any, save_path: str, global_step: Any = None, *arguments: Any, **options: Any
    ) -> str | None:
        """Saves as TensorFlow's Saver does, and the rows. GlobalStepEvict counts from global_step;
        if it isn't given, from the graph's own; if the graph has none, from the number of updates.

        Raises StorageError if rows can't be written; the previous checkpoint stays as it was.
        """
        variables = self._embedding_variables()
        if not variables:
            saved: str | None = super().save(sess, save_path, global_step, *arguments, **options)
            return saved
        step = _step_number(sess, global_step)
        prefix = checkpoint_prefix(self, os.fspath(save_path), step)
        rows = _new_rows_folder(prefix)
        numbers, tables = _tables(sess, variables)
        before = set(self.last_checkpoints)
        with _writing_rows(numbers, rows):
            save(rows, tables, _step_of_graph(sess) if step is None else step)
            # The prefix has the step already.
            path: str | None = super().save(sess, prefix, None, *arguments, **options)
            _last_full.update(dict.fromkeys(numbers, rows))
        for removed in before - set(self.last_checkpoints):
            if not tf.train.checkpoint_exists(removed):
                _remove_rows(removed)
        _remove_rows(prefix, but=rows)
        return path

    def incremental_save(self, sess: Any, save_path: str, global_step: Any) -> str:
        """Saves all dense variables, and the rows that changed since the last save, to a checkpoint
        that follows the last `save` to save_path. Returns its prefix.

        Raises InvalidArgumentError if `follows_last_save` returns False.
        """
        variables = self._embedding_variables()
        step = _step_number(sess, global_step)
        numbers, tables = _tables(sess, variables)
        full = _last_full_rows(save_path, numbers)
        if step is None:
            raise InvalidArgumentError(
                "global_step must be given: increments are put in order by it"
            )
        if full is None:
            raise InvalidArgumentError(
                f"save_path: the last save of the rows was not to {save_path}, so there is nothing "
                "that an increment could follow; call save() first"
            )
        folder = increments_folder(full)
        folder.mkdir(parents=True, exist_ok=True)
        prefix = os.fspath(folder / f"{INCREMENT}-{step}")
        if tf.train.checkpoint_exists(prefix):
            raise InvalidArgumentError(
                f"global_step: there is an increment of step {step} already, which others may "
                "follow; give a later step"
            )
        rows = _new_rows_folder(prefix)
        with _writing_rows(numbers, rows):
            save_incremental(rows, tables, step)
            super().save(sess, prefix, write_meta_graph=False, write_state=False)
            _last_full.update(dict.fromkeys(numbers, full))
        return prefix

    def follows_last_save(self, sess: Any, save_path: str) -> bool:
        """Returns whether the last save of all rows was to save_path, full or incremental."""
        numbers, _ = _tables(sess, self._embedding_variables())
        return _last_full_rows(save_path, numbers) is not None

    def restore(self, sess: Any, save_path: str) -> None:
        """Restores as TensorFlow's Saver does. Storage type, number of partitions and dim may
        differ.

        Raises CheckpointError, which names the file, if rows are missing or damaged, and
        TensorFlow's error if another variable is missing or has another shape. Nothing is changed
        then.
        """
        if has_imported_variables(sess.graph):
            raise UnsupportedError(
                "the graph was imported with embedding variables, whose rows only a program that "
                "makes them can restore; build the graph by get_embedding_variable"
            )
        variables = self._embedding_variables()
        if not variables or save_path is None or not tf.train.checkpoint_exists(save_path):
            super().restore(sess, save_path)  # raises the error
            return
        rows = _rows_of(os.fspath(save_path), variables)
        following = increments_of(rows)
        increments = following
        if following and not (self._restores_increments or restores_increments(sess.graph)):
            tf.logging.warning(
                "%s is followed by %d incremental checkpoints, which are left out; "
                "tf.train.Saver(incremental_save_restore=True) restores them, too",
                save_path,
                len(following),
            )
            increments = []
        with_dense = increments[-1] if increments else os.fspath(save_path)
        if not _has_all(with_dense, objects_of_saver_by_name(self)):
            super().restore(sess, with_dense)  # usually raises, before anything is changed
        before = table_numbers(sess, variables)
        sess.run([v.initializer for v, n in zip(variables, before, strict=True) if n == NO_TABLE])
        numbers, tables = _tables(sess, variables)
        restore(rows, tables, [_rows_of(each, variables) for each in increments])
        for number in numbers:
            _last_full.pop(number, None)
        if increments == following:  # else new increments would mix with those that were left out
            _last_full.update(dict.fromkeys(numbers, rows))
        super().restore(sess, with_dense)

    def _embedding_variables(self) -> list[EmbeddingVariable]:
        return [each for each in objects_of_saver(self) if isinstance(each, EmbeddingVariable)]


@contextlib.contextmanager
def _writing_rows(numbers: Sequence[int], rows: Path) -> Iterator[None]:
    """Writes a checkpoint with rows in that folder in the block; deletes the folder if it fails."""
    with using_rows_folder(rows.name):
        for number in numbers:
            _last_full.pop(number, None)
        try:
            yield
        except BaseException:
            shutil.rmtree(rows, ignore_errors=True)
            raise


def _tables(
    sess: Any, variables: Sequence[EmbeddingVariable]
) -> tuple[list[int], list[engine.EmbeddingVariable]]:
    numbers = table_numbers(sess, variables)
    for number, variable in zip(numbers, variables, strict=True):
        if number == NO_TABLE:
            raise InvalidArgumentError(
                f"{variable.op.name} isn't initialized in this session, so it has no rows to save"
            )
    return numbers, [table_of(number) for number in numbers]


def _has_all(prefix: str, variables: Mapping[str, Any]) -> bool:
    """Returns whether the checkpoint's TensorFlow files have these variables, shapes and types."""
    reader = tf.train.load_checkpoint(prefix)
    shapes, kinds = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return all(
        name in shapes
        and variable.shape.is_compatible_with(shapes[name])
        and variable.dtype.base_dtype == kinds[name]
        for name, variable in variables.items()
    )


def _step_number(sess: Any, global_step: Any) -> int | None:
    if global_step is None:
        return None
    if isinstance(global_step, (int, np.integer)):
        return int(global_step)
    return int(tf.train.global_step(sess, global_step))


def _step_of_graph(sess: Any) -> int | None:
    counter = tf.train.get_global_step(sess.graph)
    return None if counter is None else int(tf.train.global_step(sess, counter))


def _new_rows_folder(prefix: str) -> Path:
    """Returns a folder for the rows of a new checkpoint of that prefix."""
    if "://" in prefix:
        raise InvalidArgumentError(f"save_path must be in a local folder for rows, got {prefix}")
    return Path(f"{prefix}.rows-{uuid.uuid4().hex[:8]}").absolute()


def _rows_of(prefix: str, variables: Sequence[EmbeddingVariable]) -> Path:
    """Returns the folder that the checkpoint of that prefix names for the variables' rows."""
    reader = tf.train.load_checkpoint(prefix)
    kinds = reader.get_variable_to_dtype_map()
    folders: set[str] = set()
    for variable in variables:
        name = variable.op.name
        if kinds.get(name) != tf.string:
            what = "is of an ordinary variable" if name in kinds else "isn't there"
            raise CheckpointError(
                f"{prefix}: the entry {name} {what}, where the folder of its rows should be; the "
                f"program that saved it had no embedding variable {name}"
            )
        folders.add(reader.get_tensor(name).decode(errors="replace"))
    if len(folders) > 1 or not all(map(_ROWS.fullmatch, folders)):
        raise CheckpointError(
            f"{prefix}: names {', '.join(sorted(folders))} as the folder of its rows, which isn't "
            "one that tf.train.Saver writes"
        )
    return Path(prefix).absolute().with_name(folders.pop())


def _last_full_rows(save_path: str, numbers: Sequence[int]) -> Path | None:
    """Returns the rows of save_path's checkpoint that the last save of all tables belongs to."""
    known = {_last_full.get(number) for number in numbers}
    full = known.pop() if len(known) == 1 else None
    path = Path(save_path).absolute()
    if full is None or full.parent != path.parent or not full.is_dir():
        return None
    prefix = full.name.rpartition(".rows-")[0]
    return full if re.fullmatch(rf"{re.escape(path.name)}(-\d+)?", prefix) else None


def _remove_rows(prefix: str, but: Path | None = None) -> None:
    """Removes the row folders and increments of earlier checkpoints with the prefix. but: stays."""
    path = Path(prefix).absolute()
    for entry in path.parent.glob(f"{glob.escape(path.name)}.rows-*"):
        if _ROWS.fullmatch(entry.name) and entry != but:
            shutil.rmtree(increments_folder(entry), ignore_errors=True)
            shutil.rmtree(entry, ignore_errors=True)  # the next save removes what is left
