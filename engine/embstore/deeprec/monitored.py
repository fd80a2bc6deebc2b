"""Extends `tf.train.MonitoredTrainingSession` and related classes by incremental checkpoints."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.deeprec.increments import restore_increments_in
from embstore.deeprec.tensorflow_inside import basic_session_run_hooks, monitored_session
from embstore.errors import InvalidArgumentError
from embstore.table import checks

__all__ = [
    "CheckpointSaverHook",
    "IncrementalSaverHook",
    "Scaffold",
    "extend_monitored_training_session",
]

_BASENAME = "model.ckpt"


class IncrementalSaverHook(tf.train.SessionRunHook):  # type: ignore[misc]
    """A hook that makes an incremental checkpoint every `every_secs` seconds.

    If another saver has saved the rows since, it makes a full checkpoint instead.
    """

    def __init__(self, save_path: str, every_secs: float, get_saver: Callable[[], Any]) -> None:
        """get_saver: returns the saver of the full checkpoints, once the graph is final."""
        checks.real("save_incremental_checkpoint_secs", every_secs, above=0)
        self._save_path = save_path
        self._get_saver = get_saver
        self._timer = tf.train.SecondOrStepTimer(every_secs=every_secs)

    def begin(self) -> None:
        self._step = tf.train.get_or_create_global_step()
        restore_increments_in(tf.get_default_graph())

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        self._timer.update_last_triggered_step(int(session.run(self._step)))

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # The fetched step may be from before its increment: check for the next one.
        if not self._timer.should_trigger_for_step(int(run_values.results) + 1):
            return
        step = int(run_context.session.run(self._step))
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        saver = self._get_saver()
        if saver.follows_last_save(run_context.session, self._save_path):
            saver.incremental_save(run_context.session, self._save_path, step)
        else:
            saver.save(run_context.session, self._save_path, step)


class CheckpointSaverHook(basic_session_run_hooks.CheckpointSaverHook):  # type: ignore[misc]
    """TensorFlow's hook. incremental_save_secs: seconds between incremental checkpoints."""

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: Any = None,
        save_steps: Any = None,
        saver: Any = None,
        checkpoint_basename: str = _BASENAME,
        *arguments: Any,
        incremental_save_secs: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            checkpoint_dir, save_secs, save_steps, saver, checkpoint_basename, *arguments, **options
        )
        self._increments = None
        if incremental_save_secs is not None:
            path = os.path.join(checkpoint_dir, checkpoint_basename)  # noqa: PTH118
            self._increments = IncrementalSaverHook(path, incremental_save_secs, self._get_saver)

    def begin(self) -> None:
        super().begin()
        if self._increments is not None:
            self._increments.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        super().after_create_session(session, coord)
        if self._increments is not None:
            self._increments.after_create_session(session, coord)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        if self._increments is not None:
            self._increments.after_run(run_context, run_values)


class Scaffold(monitored_session.Scaffold):  # type: ignore[misc]
    """TensorFlow's Scaffold. incremental_save_restore: as in `Saver`."""

    def __init__(
        self, *arguments: Any, incremental_save_restore: bool = False, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._restores_increments = incremental_save_restore

    def finalize(self) -> Any:
        if self._restores_increments:
            restore_increments_in(tf.get_default_graph())
        return super().finalize()


def extend_monitored_training_session(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `tf.train.MonitoredTrainingSession`. save_incremental_checkpoint_secs: seconds
    between incremental checkpoints, which follow the full ones; None: none are made.
    """

    @functools.wraps(original)
    def monitored_training_session(
        master: str = "",
        is_chief: bool = True,
        checkpoint_dir: str | None = None,
        scaffold: Any = None,
        hooks: Sequence[Any] | None = None,
        chief_only_hooks: Sequence[Any] | None = None,
        *arguments: Any,
        save_incremental_checkpoint_secs: float | None = None,
        **options: Any,
    ) -> Any:
        if save_incremental_checkpoint_secs is not None:
            if checkpoint_dir is None:
                raise InvalidArgumentError(
                    "save_incremental_checkpoint_secs needs a checkpoint_dir for the checkpoints"
                )
            scaffold = Scaffold() if scaffold is None else scaffold
            made = scaffold
            hook = IncrementalSaverHook(
                os.path.join(checkpoint_dir, _BASENAME),  # noqa: PTH118
                save_incremental_checkpoint_secs,
                lambda: made.saver,
            )
            chief_only_hooks = [*(chief_only_hooks or ()), hook]
        return original(
            master,
            is_chief,
            checkpoint_dir,
            scaffold,
            hooks,
            chief_only_hooks,
            *arguments,
            **options,
        )

    return monitored_training_session
