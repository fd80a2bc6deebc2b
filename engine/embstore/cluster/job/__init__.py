"""The workers of a job: how they start, what they share, and how they begin again."""
