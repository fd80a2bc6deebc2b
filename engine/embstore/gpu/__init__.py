"""Tables with a tier in GPU memory: which GPU, its arrays, and steps that stay on it."""
