"""Rows, optimizers and waiting keys as they were saved, in any storage type."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from embstore.checkpoint.arguments import (
    PathLike,
    check_variables,
    checkpoint_locks,
    directory_path,
    saves_waiting_keys,
)
from embstore.checkpoint.directories import only_incremental, reading_newest_full
from embstore.checkpoint.persist.earlier_runs import refuse_awaiting
from embstore.checkpoint.restore_plan import RestorePlan, SaveOnMedium, plan_restore
from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.table.uninterrupted import uninterrupted
from embstore.variable import EmbeddingVariable

__all__ = ["carry_out", "planned_restore", "plans_of", "restore"]


def restore(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    incremental: Sequence[PathLike] = (),
) -> int:
    """Replaces what the variables hold by what was saved under their names.

    The storage type, partition_num and dim may be others than those of the save: columns that it
    lacks get their initial values, those that it has too many are cut. The rows that rank highest
    come back into the upper tiers. Keys without a row read, and start as, what they did in the
    variable that was saved, whatever initializer this one has; saves of earlier versions don't say
    what that was. The optimizer's state is that of the save, the learning rate too. A variable
    without an optimizer takes the weights alone. Saves of versions that put keys into other
    partitions are restored as any others.

    incremental: the paths of the incremental saves that followed, in order.

    Returns the global_step of the last of the saves. Everything is verified before the first row
    changes: CheckpointError, which names the file, where one is missing, truncated or damaged, or
    doesn't belong to the others; and where a variable isn't in the save or had another optimizer.
    StoreFullError where its rows don't fit.
    """
    chosen = check_variables(variables)
    with planned_restore(path, chosen, incremental) as restored, checkpoint_locks(chosen):
        return restored()


@contextlib.contextmanager
def planned_restore(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    incremental: Sequence[PathLike] = (),
) -> Iterator[Callable[[], int]]:
    """Verifies everything, and gives what then restores the variables, as `restore` does; the
    caller holds their `checkpoint_locks`.
    """
    if isinstance(incremental, (str, os.PathLike)) or not checks.is_iterable(incremental):
        raise InvalidArgumentError(f"incremental must be a list of paths, got {incremental!r}")
    increments = [directory_path(each, f"incremental[{i}]") for i, each in enumerate(incremental)]
    with reading_newest_full(directory_path(path)) as full:
        saves = [SaveOnMedium.open(full)]
        saves += [SaveOnMedium.open(only_incremental(increment)) for increment in increments]
        plans = plans_of(saves, variables)

        def restored() -> int:
            carry_out(plans)
            return saves[-1].manifest.global_step

        yield restored


def plans_of(
    saves: list[SaveOnMedium], variables: Sequence[EmbeddingVariable]
) -> list[RestorePlan]:
    """How each is restored from a full save and the incremental ones that followed it, in order."""
    waiting_keys = saves_waiting_keys()
    refuse_awaiting(variables)
    return [plan_restore(variable, saves, waiting_keys) for variable in variables]


def carry_out(plans: Sequence[RestorePlan]) -> None:
    """REQUIRES: the variables' `checkpoint_locks` are held."""
    with uninterrupted():
        for plan in plans:
            plan.carry_out()
