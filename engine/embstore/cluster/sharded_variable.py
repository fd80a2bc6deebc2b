"""Makes variables whose shards are at servers on the nodes of a Ray cluster."""

from __future__ import annotations

import threading
from dataclasses import replace

from embstore import _core
from embstore.cluster.job.worker import current_worker
from embstore.cluster.ray import cluster as ray_cluster
from embstore.cluster.rows.pushes import PushRules
from embstore.cluster.rows.remote_shard import RemoteShard
from embstore.cluster.rows.server_link import ServerLink, ServerLinks
from embstore.cluster.server.servers import Servers
from embstore.cluster.server.shard_placement import ShardPlacement
from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.table.making import MAX_PARTITIONS, VariableRequest, make_variable
from embstore.table.shard import Shard, ShardSpec
from embstore.variable import EmbeddingVariable

__all__ = ["make_sharded_variable"]


def make_sharded_variable(request: VariableRequest, shards: int) -> EmbeddingVariable:
    """Makes the variable for `embstore.get_embedding_variable(shards=)`. In a worker of a job,
    returns the variable of that name that all workers share.
    """
    count = checks.integer("shards", shards, at_least=1, at_most=MAX_PARTITIONS)
    ray_cluster.library()
    name, storage = request.name, request.ev_option.storage_option
    tiers = storage.tiers()
    worker = current_worker()
    if worker is not None:
        if storage.ssdhash_option is not None and storage.ssdhash_option.keep_files:
            raise InvalidArgumentError(
                "keep_files: a job's rows come back from its checkpoints, and it would begin by "
                "those that are kept where there is none; leave it out"
            )
        # Rows in persisted pools stay: one of the workers restores them, for all.
        variable = make_variable(
            replace(request, restores=True),
            count,
            lambda spec: worker.shard(name, count, tiers, spec),
            is_remote=True,
            discards_unlisted=False,
        )
        variable.internals.is_shared = True
        return variable
    placement = ShardPlacement(name, count, tiers, _servers_of_program())

    def make_shard(spec: ShardSpec) -> Shard:
        opened = placement.open(spec)
        link = _links.use(
            opened.address, lambda: ServerLink(opened.actor, opened.server, opened.address)
        )

        def on_end() -> None:
            _links.leave(link)
            placement.leave(opened)

        return RemoteShard(link, opened.table, spec, on_end=on_end).as_shard()

    try:
        return make_variable(request, count, make_shard, is_remote=True)
    except BaseException:
        placement.end()
        raise


_links = ServerLinks()
_program_servers_lock = threading.Lock()
_program_servers: tuple[object, Servers] | None = None  # guarded by _program_servers_lock


def _servers_of_program() -> Servers:
    """Returns the servers that hold this program's tables if it isn't a worker of a job.

    The servers of a Ray cluster that the program used before are dropped: nothing needs them.
    """
    global _program_servers
    context = ray_cluster.join_or_start().get_runtime_context()
    this_driver = (_core.fork_generation(), context.get_node_id(), context.get_job_id())
    with _program_servers_lock:
        if _program_servers is None or _program_servers[0] != this_driver:
            _program_servers = this_driver, Servers(PushRules())
        return _program_servers[1]
