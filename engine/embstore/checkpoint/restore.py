"""Restores variables from saves, into any storage type."""

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
from embstore.checkpoint.persist.earlier_runs import check_none_awaits_restore
from embstore.checkpoint.restore_plan import RestorePlan, SaveOnMedium, plan_restore
from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.table.uninterrupted import uninterrupted
from embstore.variable import EmbeddingVariable

__all__ = ["carry_out", "plan_restores", "planned_restore", "restore"]


def restore(
    path: PathLike,
    variables: Sequence[EmbeddingVariable],
    incremental: Sequence[PathLike] = (),
) -> int:
    """Replaces the contents of the variables by those saved under their names. Returns the
    global_step of the last save.

    The storage type, partition_num and dim may differ from the save's: columns that it lacks get
    their initial values, surplus columns are cut. The highest-ranked rows come back into the upper
    tiers. Keys without a row get the initial values of the variable that was saved, whatever
    initializer this one has; saves of earlier versions don't have these. The optimizer's state and
    the learning rate are those of the save. A variable without an optimizer takes only the weights.
    Saves of earlier versions, which spread keys over partitions differently, are restored too.

    incremental: the paths of the incremental saves that followed, in order.

    Everything is verified before the first row changes. Meanwhile look-ups of other threads go on,
    and read initial values for rows that aren't restored yet: a program that serves should restore
    into a new variable.

    Raises CheckpointError, which names the file, if a file is missing, truncated or damaged, or
    doesn't belong to the others, and if a variable isn't in the save or had another optimizer.
    Raises StoreFullError if the rows don't fit.
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
    """Verifies everything, and yields a function that restores the variables as `restore` does.
    REQUIRES: the caller holds their `checkpoint_locks` when it calls that function.
    """
    if isinstance(incremental, (str, os.PathLike)) or not checks.is_iterable(incremental):
        raise InvalidArgumentError(f"incremental must be a list of paths, got {incremental!r}")
    increments = [directory_path(each, f"incremental[{i}]") for i, each in enumerate(incremental)]
    with reading_newest_full(directory_path(path)) as full:
        saves = [SaveOnMedium.open(full)]
        saves += [SaveOnMedium.open(only_incremental(increment)) for increment in increments]
        plans = plan_restores(saves, variables)

        def restored() -> int:
            carry_out(plans)
            return saves[-1].manifest.global_step

        yield restored


def plan_restores(
    saves: list[SaveOnMedium], variables: Sequence[EmbeddingVariable]
) -> list[RestorePlan]:
    """Returns each variable's plan to restore it from a full save and the incremental saves that
    followed it, in order.
    """
    waiting_keys = saves_waiting_keys()
    check_none_awaits_restore(variables)
    return [plan_restore(variable, saves, waiting_keys) for variable in variables]


def carry_out(plans: Sequence[RestorePlan]) -> None:
    """Restores the variables of `plans`. REQUIRES: their `checkpoint_locks` are held."""
    with uninterrupted():
        for plan in plans:
            plan.carry_out()
