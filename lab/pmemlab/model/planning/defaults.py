"""What a plan takes where nothing is said."""

FIRST_TIER_FRACTION = 0.1  # what `embstore.bench tiers` measures too
MIDDLE_TIER_FRACTION = 0.3
BATCH_IDS = 106_496  # 4,096 samples of 26 columns, as embstore.bench's
THREADS = 16
USABLE_FRACTION = 0.9
MAX_MACHINES = 100
