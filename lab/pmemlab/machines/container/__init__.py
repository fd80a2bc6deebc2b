"""The lab's use of the Docker engine: reaching it, the image of a machine, Compose."""
