"""The face for programs written for TensorFlow 1 and for DeepRec's fork of it.

`embstore.graph` (deferred computation), `embstore.feature_column` and `embstore.deeprec` are this
package's modules under the names that such programs use. Nothing else of embstore needs it.
"""
