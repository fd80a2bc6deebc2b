"""Variables whose shards lie in other processes, on one computer or on many.

    var = es.get_embedding_variable("items", 16, optimizer=es.optimizers.Adagrad(0.1), shards=4)

Each shard holds one partition (a hash that is used for nothing else maps keys to shards) and has
tiers of its own, each of the full storage_size. The shards of a variable are at different servers,
which are Ray actors; a server holds shards of all variables of the program. A sharded variable is
used like any other and belongs to the process that made it. Several processes share variables as
the workers of a `Job`; `run` starts them, and restarts them from their last checkpoint after any
process dies.

The cluster is the one that the program has called `ray.init()` for, or that RAY_ADDRESS names. With
neither, Ray is started on this computer's loopback address, and ends with the program. `python -m
embstore.server` starts a node. A node with persistent memory offers the resource `pmem`, in GiB;
shards with PMem tiers go to such nodes. Paths are resolved on the shard's node, and checkpoints
need a path that all nodes share; NODE_PMEM as a storage_path stands for the --pmem of each node.

Rows go over sockets between the program and the servers, at the node addresses that Ray knows. A
connection must send a token, which Ray distributes; the traffic is not encrypted.
"""

from embstore.checkpoint.training.directory import TrainingCheckpoint
from embstore.cluster.job.job import Job, run
from embstore.cluster.job.worker import JobTicket, Worker, join
from embstore.cluster.server.servers import PMEM_RESOURCE
from embstore.options import NODE_PMEM

__all__ = [
    "NODE_PMEM",
    "PMEM_RESOURCE",
    "Job",
    "JobTicket",
    "TrainingCheckpoint",
    "Worker",
    "join",
    "run",
]
