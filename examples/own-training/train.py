"""An example of a user's own training script: logistic regression on two columns of ids.

    python train.py --storage-type PMEM_LIBPMEM --pmem /mnt/pmem0 --pmem-size 402653184

The scenario judges the last line, which `print_run` prints.
"""

import argparse
import time

import numpy as np

import embstore as es
from pmemlab.workloads.own_program import print_run

DIM, BATCH, IDS = 8, 512, 2_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage-type", required=True)
    parser.add_argument("--pmem", required=True)
    parser.add_argument("--pmem-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    # DRAM needs neither option; a tier on persistent memory keeps its rows in a file there.
    is_dram = arguments.storage_type == "DRAM"
    storage = es.StorageOption(
        storage_type=es.StorageType[arguments.storage_type],
        storage_path=None if is_dram else arguments.pmem,
        storage_size=None if is_dram else [arguments.pmem_size // 8],
    )
    columns = [
        es.get_embedding_variable(
            name,
            embedding_dim=DIM,
            initializer=es.initializers.TruncatedNormal(stddev=0.3, seed=number),
            optimizer=es.optimizers.Adagrad(learning_rate=0.5),
            ev_option=es.EmbeddingVariableOption(storage_option=storage),
        )
        for number, name in enumerate(("user", "item"))
    ]
    random = np.random.default_rng(7)
    losses, begin = [], time.perf_counter()
    for _ in range(arguments.steps):
        ids = random.integers(0, IDS, size=(2, BATCH))
        clicks = (ids[0] % 2 == ids[1] % 2).astype(np.float32)
        user, item = (column.lookup(ids[n], train=True) for n, column in enumerate(columns))
        chance = 1 / (1 + np.exp(-(user * item).sum(axis=1)))
        losses.append(-np.log(np.where(clicks > 0, chance, 1 - chance)).mean())
        error = (chance - clicks)[:, None].astype(np.float32)
        columns[0].apply_gradients(ids[0], error * item)
        columns[1].apply_gradients(ids[1], error * user)
    seconds = time.perf_counter() - begin
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

    print_run(columns, losses=losses, samples=arguments.steps * BATCH, seconds=seconds)


if __name__ == "__main__":
    main()
