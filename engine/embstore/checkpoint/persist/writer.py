"""Writes the checkpoints of durable pools: begins them between two batches, and finishes them in a
background thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from embstore.checkpoint.manifest import Manifest, VariableEntry
from embstore.checkpoint.persist.checkpoints import CheckpointDirectory, listed_ids, listed_numbers
from embstore.checkpoint.persist.earlier_runs import check_none_awaits_restore
from embstore.checkpoint.save_job import quoted
from embstore.errors import ClosedError, EmbStoreError, InvalidArgumentError
from embstore.table.internals import between_batches, shards_of
from embstore.table.shard import BegunShard, PersistRequest, Shard
from embstore.variable import EmbeddingVariable

__all__ = ["PersistWriter", "finish_persists", "writer_of"]

_log = logging.getLogger("embstore.checkpoint")


@dataclass(frozen=True)
class _BegunCheckpoint:
    """A checkpoint that the pools have begun."""

    number: int
    checkpoint_id: bytes
    unfinished: Path
    manifest: Manifest
    parts: tuple[tuple[Shard, int], ...]  # each shard, with the number that its pool gave it

    @property
    def shards(self) -> list[Shard]:
        return [shard for shard, _ in self.parts]


@dataclass
class PersistWriter:
    """A writer of the checkpoints of a set of variables to one directory, one after the other."""

    directory: CheckpointDirectory
    users: int = 0  # open variables
    covered: frozenset[str] = frozenset()  # names of the newest checkpoint's variables
    has_counted: bool = False  # a checkpoint has counted, and the pools have the note of it
    pending: list[Future[None]] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)
    executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="embstore-persist")
    )

    @classmethod
    @contextlib.contextmanager
    def writing(
        cls, variables: list[EmbeddingVariable], path: Path, *, restores: bool = False
    ) -> Iterator[PersistWriter]:
        """Yields the variables' writer, or a new one, which becomes theirs if the scope succeeds.

        restores: the scope restores the variables from one of the listed checkpoints. Otherwise the
            directory must list no checkpoint that the variables weren't made or restored from.
        """
        writers = [writer_of(variable) for variable in variables]
        writer = writers[0]
        if writer is not None and all(other is writer for other in writers):
            if writer.directory.path == path:
                if not restores:
                    writer._refuse_missing_variables(variables)
                yield writer
                return
            if not writer._missing_variables(variables):
                raise InvalidArgumentError(
                    f"path: {variables[0].name} persists to {writer.directory.path}; give that one"
                )
            writer.finish()
        elif any(writers) and not restores:
            raise InvalidArgumentError(
                "variables: were not persisted together before; persist the same ones together "
                "each time"
            )
        for variable in variables:
            variable.total_count()  # raises if closed: its old writer may not be closed yet
        writer = _sole_writer(path, variables if restores else []) or cls(CheckpointDirectory(path))
        shards = shards_of(variables)
        try:
            if not restores:
                writer._refuse_unrelated_checkpoints(variables)
                for shard in shards:
                    shard.note_begun_at(str(path))
                writer._adopt(variables)
            yield writer
            if restores:
                writer._note_listed(shards)
                writer._adopt(variables)
        except BaseException:
            if writer.users == 0:
                writer._close()
            raise

    def _adopt(self, variables: list[EmbeddingVariable]) -> None:
        for variable in variables:
            if writer_of(variable) is self:
                continue
            leave = partial(_leave, weakref.ref(variable))
            leave()
            _writers[variable] = self
            self.users += 1
            variable.internals.before_close.append(self.finish)
            variable.internals.after_close.append(leave)
            try:
                variable.total_count()
            except ClosedError:  # the closing thread may have missed the callbacks just appended
                leave()
                raise

    def _refuse_unrelated_checkpoints(self, variables: list[EmbeddingVariable]) -> None:
        check_none_awaits_restore(variables)
        if listed_numbers(self.directory.path):
            names = ", ".join(variable.name for variable in variables)
            raise InvalidArgumentError(
                f"path: {self.directory.path} lists checkpoints, which {names} didn't come from; "
                "restore_persisted() one of them, or give another directory"
            )

    def _missing_variables(self, variables: list[EmbeddingVariable]) -> list[str]:
        """Returns the names of the newest checkpoint's variables that are not in `variables`."""
        return sorted(self.covered - {variable.name for variable in variables})

    def _refuse_missing_variables(self, variables: list[EmbeddingVariable]) -> None:
        """Raises InvalidArgumentError if a variable of the newest checkpoint is missing: its last
        checkpoint would be dropped when the next one is durable.
        """
        if missing := self._missing_variables(variables):
            raise InvalidArgumentError(
                f"variables: the newest checkpoint in {self.directory.path} has "
                f"{', '.join(missing)} too; persist all of them together each time, or give "
                "another directory"
            )

    def give_up(self, number: int, shards: Sequence[Shard]) -> None:
        """Gives up a durable checkpoint."""
        with _logging_errors():
            self.directory.remove(number)
        self.drop_unlisted(shards)

    def is_pending(self) -> bool:
        """Returns whether a checkpoint was begun that is neither durable nor given up yet."""
        with self.mutex:
            return not all(future.done() for future in self.pending)

    def wait_until_pending(self, max_pending: int) -> None:
        """Waits until at most `max_pending` checkpoints are pending. Raises the error that an
        earlier one met in the background.
        """
        while True:
            with self.mutex:
                done = [future for future in self.pending if future.done()]
                self.pending = [future for future in self.pending if not future.done()]
                waiting = self.pending[0] if len(self.pending) > max_pending else None
            for future in done:
                future.result()
            if waiting is None:
                return
            with contextlib.suppress(Exception):  # the next round raises the error
                waiting.result()

    def begin(
        self, variables: list[EmbeddingVariable], step: int, *, waiting_keys: bool
    ) -> _BegunCheckpoint:
        number, unfinished = self.directory.begin()
        checkpoint_id = uuid.uuid4().bytes
        parts: list[tuple[Shard, int]] = []
        try:
            entries = []
            with between_batches(variables):
                for index, variable in enumerate(variables):
                    files: list[tuple[str, BegunShard]] = []
                    for partition, shard in enumerate(variable.internals.shards):
                        name = f"{quoted(variable.name)}-{index}.{partition}.state"
                        begun = shard.begin_persist(
                            PersistRequest(
                                str(unfinished / name),
                                checkpoint_id,
                                partition,
                                variable.partition_num,
                                waiting_keys,
                            )
                        )
                        parts.append((shard, begun.number))
                        files.append((name, begun))
                    rows = sum(begun.total_rows for _, begun in files)
                    entries.append(VariableEntry.of(variable, files, total_rows=rows))
        except BaseException:
            _drop(parts)
            self.directory.abandon(unfinished)
            raise
        manifest = Manifest(
            save_id=checkpoint_id.hex(), kind="pool", global_step=step, variables=tuple(entries)
        )
        self.covered = frozenset(variable.name for variable in variables)
        return _BegunCheckpoint(number, checkpoint_id, unfinished, manifest, tuple(parts))

    def submit(
        self, checkpoint: _BegunCheckpoint, keep: int, *, counts_when_listed: bool
    ) -> Future[None]:
        """Finishes a checkpoint in the background. counts_when_listed: False: it counts only once
        `confirm` is called.

        Raises ClosedError if a variable was closed since the checkpoint was begun.
        """
        try:
            future = self.executor.submit(self._finish, checkpoint, keep, counts_when_listed)
        except RuntimeError as error:
            if "shutdown" not in str(error):  # for example, no thread could be started just now
                raise
            _drop(checkpoint.parts)
            self.directory.abandon(checkpoint.unfinished)
            names = ", ".join(entry.name for entry in checkpoint.manifest.variables)
            raise ClosedError(
                f"persist: {names} was closed, or the program ends, while the checkpoint began"
            ) from error
        with self.mutex:
            self.pending.append(future)
        return future

    def forget(self, future: Future[None]) -> None:
        """Removes a future whose result its caller has seen."""
        with self.mutex:
            if future in self.pending:
                self.pending.remove(future)

    def confirm(self, shards: Sequence[Shard]) -> None:
        """Makes the shards' newest checkpoint count: from now on no pool discards any by itself."""
        if not self.has_counted:
            with _logging_errors():
                self._note_listed(shards)

    def _note_listed(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            shard.note_listed_at(str(self.directory.path))
        self.has_counted = True

    def _finish(self, checkpoint: _BegunCheckpoint, keep: int, counts_when_listed: bool) -> None:
        try:
            for shard, number in checkpoint.parts:
                shard.finish_persist(number, checkpoint.checkpoint_id)
            self.directory.publish(checkpoint.number, checkpoint.unfinished, checkpoint.manifest)
        except BaseException:
            _drop(checkpoint.parts)
            self.directory.abandon(checkpoint.unfinished)
            raise
        # The checkpoint is listed, so it has succeeded: errors from here on are only logged.
        if counts_when_listed:
            self.confirm(checkpoint.shards)
        with _logging_errors():
            for number in listed_numbers(self.directory.path)[:-keep]:
                with _logging_errors():
                    self.directory.remove(number)  # before any pool drops it
        self.drop_unlisted(checkpoint.shards)

    def drop_unlisted(self, shards: Sequence[Shard]) -> None:
        """Drops the pools' checkpoints that aren't listed; none if a manifest can't be read."""
        with _logging_errors():
            listed = listed_ids(self.directory.path)
            for shard in shards:
                for found in reversed(shard.persisted()):
                    if found.checkpoint_id not in listed:
                        shard.drop_persisted(found.number)

    def finish(self) -> None:
        """Returns when no checkpoint is pending; raises the error that one met."""
        self.wait_until_pending(0)

    def leave(self) -> None:
        with self.mutex:
            self.users -= 1
            if self.users:
                return
        self._close()

    def _close(self) -> None:
        self.executor.shutdown()
        self.directory.close()


# The writers of open variables that were persisted, or restored from checkpoints of their pools.
_writers: weakref.WeakKeyDictionary[EmbeddingVariable, PersistWriter] = weakref.WeakKeyDictionary()


def writer_of(variable: EmbeddingVariable) -> PersistWriter | None:
    """Returns the variable's writer; None if it has no checkpoint yet, or is closed."""
    return _writers.get(variable)


def finish_persists(variable: EmbeddingVariable) -> None:
    """Returns when no checkpoint of the variable is pending; raises the error that one met."""
    writer = writer_of(variable)
    if writer is not None:
        writer.finish()


def _leave(closed: weakref.ref[EmbeddingVariable]) -> None:
    variable = closed()
    assert variable is not None, "it is being closed"
    writer = _writers.pop(variable, None)
    if writer is not None:  # else the variable has left this writer before
        writer.leave()


def _sole_writer(path: Path, variables: list[EmbeddingVariable]) -> PersistWriter | None:
    """Returns this process's writer for a directory, or None. Raises InvalidArgumentError if the
    writer has other variables than these.
    """
    users = {v: writer for v, writer in list(_writers.items()) if writer.directory.path == path}
    if others := sorted(variable.name for variable in users if variable not in variables):
        raise InvalidArgumentError(
            f"variables: {', '.join(others)} of this process persist to {path}; give all "
            "variables of a checkpoint together, or another directory"
        )
    return next(iter(users.values()), None)


@contextlib.contextmanager
def _logging_errors() -> Iterator[None]:
    """A scope for clean-up after a checkpoint that has succeeded: errors are logged as warnings,
    and the next checkpoint tries again.
    """
    try:
        yield
    except EmbStoreError as error:
        _log.warning("%s; the next checkpoint tries that again", error)


def _drop(parts: Sequence[tuple[Shard, int]]) -> None:
    for shard, number in parts:
        with contextlib.suppress(EmbStoreError):  # its space is freed when the pool is next opened
            shard.drop_persisted(number)
