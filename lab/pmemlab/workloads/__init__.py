"""The workloads that a machine runs: training jobs whose embeddings are stored by the engine.

`batches` defines a batch of Criteo rows; `criteo` reads batches from files and `synthetic` draws
them from a seed. `wide_and_deep` is the model. `training` trains it, and `table_training` trains
tables without a model. Both use the loop of `steps`, which times, checkpoints, predicts and checks
a run. `wdl` and `tables` are the commands.
"""
