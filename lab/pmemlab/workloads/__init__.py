"""What a machine is made to run: training jobs whose embeddings live in the engine.

`batches` says what a batch of Criteo rows is; `criteo` reads them from files and `synthetic` draws
them from a seed. `wide_and_deep` is the model, `training` the loop that measures it, and `wdl` the
command that puts them together.
"""
