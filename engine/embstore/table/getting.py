"""Makes variables for user programs, with shards in this process or at servers."""

from __future__ import annotations

from dataclasses import replace

from embstore.errors import InvalidArgumentError
from embstore.initializers import Initializer
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.table import checks
from embstore.table.making import VariableRequest, make_variable
from embstore.variable import EmbeddingVariable

__all__ = ["get_embedding_variable"]


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    *,
    initializer: Initializer | type[Initializer] | None = None,
    optimizer: Optimizer | None = None,
    ev_option: EmbeddingVariableOption | None = None,
    partition_num: int = 1,
    shards: int | None = None,
    restores: bool = False,
) -> EmbeddingVariable:
    """Makes a variable: an empty one, unless its rows were kept (`SSDHashOption.keep_files`).

    name: names the variable in messages and its files; any text of at most 1000 bytes of UTF-8
        without NUL.
    embedding_dim: the number of values in a row.
    initializer: makes the initial rows. `ev_option.init_option.initializer` overrides it; the
        default is TruncatedNormal(). A class stands for the instance that it makes without
        arguments. A random initializer without a seed derives its seed from the name.
    optimizer: one of `embstore.optimizers`; without one the variable can't be trained.
    ev_option: where rows are kept, and how they start (default: in DRAM).
    partition_num: number of tables that the keys are spread over, by a hash of the key; each has
        tiers of its own, of the full storage_size.
    shards: number of tables, each at another server on a Ray cluster; a server holds shards of all
        variables of the program; see `embstore.cluster`. None: all tables are in this process.
    restores: True: a durable pool may have checkpoints of an earlier run, which
        `embstore.restore_persisted` or `Checkpoints.restore` will take over, or
        `embstore.discard_persisted` will discard; until then the variable can't be trained. False:
        such a pool raises StorageError. Has no effect if nothing is durable, nor in the workers of
        a job, which always restore.

    Raises InvalidArgumentError, MissingLibraryError, MissingDeviceError, StoreFullError (memkind's
    node, or the GPU, has less room than storage_size) or StorageError.
    """
    checks.variable_name(name)
    if ev_option is None:
        ev_option = EmbeddingVariableOption()
    elif not isinstance(ev_option, EmbeddingVariableOption):
        raise InvalidArgumentError(
            f"ev_option must be an embstore.EmbeddingVariableOption, got {type(ev_option).__name__}"
        )
    restores = checks.flag("restores", restores)
    ev_option = replace(ev_option, storage_option=ev_option.storage_option.at_absolute_paths())
    partition_num, shards = checks.parts(partition_num, shards)
    request = VariableRequest(name, embedding_dim, ev_option, initializer, optimizer, restores)
    if shards is not None:
        from embstore.cluster.sharded_variable import make_sharded_variable  # few programs need it

        return make_sharded_variable(request, shards)
    return make_variable(request, partition_num)
