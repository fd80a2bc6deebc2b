"""Train WDL, DeepFM or xDeepFM on Criteo rows, in Keras 3 over embstore's tables.

`python -m benchmarks.criteo_deepctr` takes the flags of the benchmark of this name in
4paradigm/OpenEmbedding (test/benchmark/criteo_deepctr.py), and its models' sizes, so that figures
can be compared.
"""
