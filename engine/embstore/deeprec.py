"""The name by which DeepRec's programs import `embstore.tensorflow1.deeprec`."""

from embstore.tensorflow1.deeprec import *  # noqa: F403
from embstore.tensorflow1.deeprec import __all__ as __all__
