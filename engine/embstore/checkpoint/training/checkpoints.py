"""Checkpoints of a training in one process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embstore.checkpoint.arguments import PathLike, check_variables, directory_path
from embstore.checkpoint.persist.persisting import MAX_KEPT
from embstore.checkpoint.training.directory import TrainingCheckpoint, TrainingDirectory
from embstore.checkpoint.training.tables import (
    restore_tables,
    split_by_durability,
    writing_checkpoint,
)
from embstore.errors import CheckpointError, InvalidArgumentError
from embstore.files import reading_from
from embstore.table import checks
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoints"]


class Checkpoints:
    """A folder of checkpoints, each with variables and the program's own files of the same step.

        with es.Checkpoints("checkpoints") as checkpoints:
            found = checkpoints.restore([items, users])
            if found is not None:
                model.load_state_dict(torch.load(found.path / "dense.pt"))
            for step in range(found.step if found else 0, 1000):
                ...
                if (step + 1) % 100 == 0:
                    with checkpoints.checkpoint(step + 1, [items, users]) as folder:
                        torch.save(model.state_dict(), folder / "dense.pt")

    Several processes that train the same variables have `Worker.checkpoint` and `Worker.restore`,
    which read and write the same folders.

    path: made if its parent exists. The process that opened it last is its only writer.
    keep: number of newest checkpoints that are kept, from 1 to 7.
    read_only: True: only restores, for example to serve what another process trains. The folder
        must exist, nothing is written to it, and its writer goes on.
    """

    def __init__(self, path: PathLike, keep: int = 2, *, read_only: bool = False) -> None:
        folder = directory_path(path)
        # Durable pools keep one more checkpoint until the newest one is published.
        keep_count = checks.integer("keep", keep, at_least=1, at_most=MAX_KEPT - 1)
        self._made_in = os.getpid()
        self._writing = threading.RLock()
        self._is_writing = False
        self._read_only = checks.flag("read_only", read_only)
        with reading_from(folder):
            if self._read_only and not folder.is_dir():
                raise CheckpointError(f"checkpoints: {folder}: there is no such directory")
        self._directory = TrainingDirectory(folder, keep=keep_count)
        if not self._read_only:
            self._directory.take_over()

    def newest(self) -> TrainingCheckpoint | None:
        """Returns the checkpoint that `restore` would use, or None."""
        return self._directory.newest()

    def restore(self, variables: Sequence[EmbeddingVariable]) -> TrainingCheckpoint | None:
        """Restores the variables from the newest checkpoint and returns it; None if there is none
        yet.

        The program's own files lie in the checkpoint's `path`, and have been verified. Partitions
        and the storage type may differ, except for variables with durable pools.

        Waits until other threads have left the blocks of their checkpoints. Raises
        InvalidArgumentError in the block of a checkpoint, and with read_only for a variable with a
        durable pool; CheckpointError; and the errors of `embstore.restore`.
        """
        chosen = check_variables(variables)
        durable, _ = split_by_durability(chosen)
        if durable and self._read_only:
            raise InvalidArgumentError(
                f"variables: {durable[0].name} has a durable pool, which its restore writes to; "
                "open the checkpoints without read_only"
            )
        with self._exclusive(), self._directory.reading_newest() as checkpoint:
            if checkpoint is not None:
                checkpoint.check()
            restore_tables(checkpoint, self._directory.pools, chosen)
            return checkpoint

    @contextlib.contextmanager
    def checkpoint(self, step: int, variables: Sequence[EmbeddingVariable]) -> Iterator[Path]:
        """Saves the variables as one checkpoint, with the files that the `with` block writes into
        the folder that is yielded.

        The checkpoint counts when the block has ended and all of it is durable; until then, and if
        anything fails, the older one counts. Variables with durable pools
        (`StorageOption(durability=...)`) are persisted: only changes are written. Rows are those of
        the beginning of the block.

        step: number of steps done; greater than that of every checkpoint in the folder.

        Other threads' checkpoints and restores wait until the block is left. Raises
        InvalidArgumentError in the block of another checkpoint and with read_only, and ClosedError
        after `close`.
        """
        if self._read_only:
            raise InvalidArgumentError(
                f"checkpoints: {self._directory.folder} was opened with read_only=True; open it "
                "without, to write checkpoints"
            )
        done = checks.integer("step", step, at_least=0)
        check_variables(variables)
        directory = self._directory
        with self._exclusive():
            directory.check_step(done)
            with writing_checkpoint(directory, variables, done, directory.publish) as folder:
                yield folder

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """A scope in which no other thread writes or restores a checkpoint.

        Raises InvalidArgumentError inside another such scope of this thread, and in a forked child,
        where no thread would release a lock that was held at the fork.
        """
        if os.getpid() != self._made_in:
            raise InvalidArgumentError(
                f"checkpoints: {self._directory.folder} was opened by the process that this one "
                "was forked from; open it here"
            )
        with self._writing:
            if self._is_writing:
                raise InvalidArgumentError(
                    "checkpoints: this thread is in the block of a checkpoint of "
                    f"{self._directory.folder}; leave that first"
                )
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False

    def close(self) -> None:
        """Removes unfinished checkpoints. Later checkpoints raise ClosedError."""
        if os.getpid() == self._made_in:
            self._directory.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
