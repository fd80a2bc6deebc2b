"""Makes variables whose shards are actors on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

from embstore import _checks
from embstore._shard import Shard, ShardSpec
from embstore._variable_making import MAX_PARTITIONS, make_variable
from embstore.cluster import ray_cluster
from embstore.cluster.placing import Placing
from embstore.cluster.pushes import PushRules
from embstore.cluster.remote_shard import Membership, RemoteShard
from embstore.cluster.worker import current_worker
from embstore.errors import InvalidArgumentError
from embstore.initializers import Initializer
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.variable import EmbeddingVariable

__all__ = ["make_sharded_variable"]


def make_sharded_variable(
    name: str,
    embedding_dim: int,
    *,
    initializer: Initializer | None,
    optimizer: Optimizer | None,
    ev_option: EmbeddingVariableOption,
    shards: int,
) -> EmbeddingVariable:
    """As `embstore.get_embedding_variable` with `shards`; in a worker of a job, the variable of
    that name that all workers share.
    """
    count = _checks.integer("shards", shards, at_least=1, at_most=MAX_PARTITIONS)
    ray_cluster.library()
    storage = ev_option.storage_option
    tiers = storage.tiers()

    worker = current_worker()

    def make(make_shard: Callable[[ShardSpec], Shard]) -> EmbeddingVariable:
        return make_variable(
            name,
            embedding_dim,
            initializer=initializer,
            optimizer=optimizer,
            ev_option=ev_option,
            partition_num=count,
            make_shard=make_shard,
            elsewhere=True,
            # Workers leave it to their restore, which one of them carries out.
            discards_unlisted=worker is None,
        )

    if worker is not None:
        if storage.ssdhash_option is not None and storage.ssdhash_option.keep_files:
            raise InvalidArgumentError(
                "keep_files: a job's rows come back from its checkpoints, and it would begin by "
                "those that are kept where there is none; leave it out"
            )
        variable = make(lambda spec: worker.shard(name, count, tiers, spec))
        variable._is_shared = True
        return variable
    placing = Placing(name, count, tiers, PushRules())

    def make_shard(spec: ShardSpec) -> Shard:
        made = placing.open(spec)
        return RemoteShard(made.actor, spec, made.address, Membership())

    try:
        return make(make_shard)
    except BaseException:
        placing.end()
        raise
