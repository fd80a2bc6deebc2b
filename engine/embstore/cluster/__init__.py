"""Variables whose shards lie in other processes, on one computer or on many.

    var = es.get_embedding_variable("items", 16, optimizer=es.optimizers.Adagrad(0.1), shards=4)

Each shard holds one partition, keys going to shards by a hash of their own; it has tiers of its own
and of the full storage_size. The shards of a variable are at different servers, Ray actors, and a
server holds shards of all variables of the program. The variable is like any other: it belongs to
the process that made it. Several processes share variables as the workers of a `Job`; `run` starts
them, and has them go on from their last checkpoint whatever dies.

The cluster is the one that the program has called `ray.init()` for, or that RAY_ADDRESS names. With
neither, Ray is started on this computer's loopback address, and ends with the program. Nodes are
started by `python -m embstore.server`. One that has persistent memory says how much, in GiB, by the
resource `pmem`; shards with tiers of it go to such nodes. Paths are those of the shard's node, and
checkpoints need one that all nodes share; NODE_PMEM as a storage_path is the --pmem of each node.

Rows go over sockets between the program and the servers, at the addresses that Ray has for their
nodes. A connection has to know a token, which Ray hands out; what goes over it is not encrypted.
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
