"""A node for tables' servers: starts a Ray cluster, or joins one; and tells how a cluster is doing.

    python -m embstore.server --bind_ip 10.0.0.1:6379 --pmem /mnt/pmem0 --cache_size 4096
    python -m embstore.server --bind_ip 10.0.0.2 --pmem /mnt/pmem1 --master_endpoint 10.0.0.1:6379
    python -m embstore.server status --master_endpoint 10.0.0.1:6379

A worker sets RAY_ADDRESS=10.0.0.1:6379, which the first prints, and makes its variables with
`shards=`. By `storage_path=es.cluster.NODE_PMEM` their rows lie in the --pmem of the nodes. (A
program that calls `ray.init()` itself sets RAY_AUTH_MODE=token too, and for a head at 127.0.0.1
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or Ray looks for it at another address.)

Without --bind_ip nothing listens but on 127.0.0.1. With another address (Ray 2.60): the head at its
port, each node at two, and each worker and server at one of Ray's, are open on every interface of
their computers, and only a runtime environment's agent and the rows' sockets keep to the address:
so have a firewall let in the cluster's own computers alone. Whoever is at those ports needs the
token in ~/.ray/auth_token, which the head makes and every node and worker needs a copy of; with
RAY_AUTH_MODE=disabled nobody does. What goes over them isn't encrypted, unless Ray has TLS.
"""
