"""Times checkpoints of image models on several media and in several formats, with equal bytes.

`models`, `images` and `training` produce the state to save. `checkpoint` defines what is saved, the
same in every arm (a medium with a format); `formats` turn it into bytes; `mapped_file` is the
project's own format in mapped persistent memory. `medium` asks the kernel what a path lies on,
`page_cache` makes and checks cold reads, `yardstick` measures the medium alone. `measure` runs the
arms, `report` shows their results, and `command` is the command line.
"""
