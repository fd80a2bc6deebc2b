"""Checkpoints of image models on several media and in several formats, timed with equal bytes.

`models`, `images` and `training` make something worth saving. `checkpoint` says what is saved, the
same in every arm; `formats` how it becomes bytes; `mapped_file` is the project's own format, in
persistent memory that is mapped. `medium` asks the kernel what a path is on, `page_cache` makes
and checks cold reads, `yardstick` measures the medium by itself. `measure` runs the arms, `report`
shows what they gave, and `command` is the command line.
"""
