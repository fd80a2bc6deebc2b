"""A model of PMem-based OpenEmbedding, a parameter server on persistent memory (ICDE 2023).

`prediction.Predictor` predicts how long an epoch takes on each of the paper's four engines, by
GPUs, size of the cache, skew and checkpoints. README.md explains the assumptions.

Nothing is imported here, so that `pmemlab` can read the options without the engine.
"""
