"""The Docker engine as the lab uses it: how to reach it, the image of a machine, Compose."""
