"""A model of PMem-based OpenEmbedding, a parameter server on persistent memory (ICDE 2023).

`prediction.Predictor` tells how long an epoch takes on each of the paper's four engines, by GPUs,
size of the cache, skew and checkpoints. README.md here says what it assumes, and why.

Nothing is imported here: `pmemlab` reads its options where the engine isn't installed.
"""
