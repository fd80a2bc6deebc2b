"""Tables with a tier in GPU memory: the choice of the GPU, its arrays, and steps on its streams."""
