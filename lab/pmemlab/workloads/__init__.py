"""What a machine is made to run: training jobs whose embeddings live in the engine.

`batches` says what a batch of Criteo rows is; `criteo` reads them from files and `synthetic` draws
them from a seed. `wide_and_deep` is the model. `training` trains it, and `table_training` tables by
themselves, by the loop of `steps`, which times, keeps, predicts and judges both alike. `wdl` and
`tables` are the commands.
"""
