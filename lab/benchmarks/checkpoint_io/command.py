"""The command line: `python -m benchmarks.checkpoint_io`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.checkpoint_io.errors import MediumError
from pmemlab.progress_bar import progress_bar
from pmemlab.whole_file import check_output, write_output
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.command_line import (
    add_count,
    new_parser,
    run_command,
    seed,
)

if TYPE_CHECKING:
    from benchmarks.checkpoint_io.checkpoint import Checkpoint
    from benchmarks.checkpoint_io.images import Images
    from benchmarks.checkpoint_io.measure import ArmResult
    from benchmarks.checkpoint_io.medium import Medium
    from benchmarks.checkpoint_io.report import Report
    from benchmarks.checkpoint_io.training import Trainer

_MODELS: Final = ("vgg16", "dpn92", "simpledla")
_GENERATED_IMAGES: Final = 1024


def argument_parser() -> argparse.ArgumentParser:
    """Returns the command line's parser; doesn't need PyTorch."""
    parser = new_parser(
        "benchmarks.checkpoint_io",
        "Save and load checkpoints of image models on several media and in several "
        "formats, and say how fast, with the same bytes everywhere.",
    )
    parser.add_argument(
        "--medium",
        action="append",
        default=[],
        metavar="NAME=PATH[:KIND]",
        help="folder on a medium; may be repeated. KIND is file (through the file system), dax "
        "(a dax mount through the file system) or mapped (by stores into mapped memory)",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="device to pace a medium as: a name of `pmemlab model devices`, or a file; may be "
        "repeated. A disk has the formats of files; a memory has all formats, as a dax mount",
    )
    parser.add_argument(
        "--paced-in",
        type=Path,
        default=Path("/dev/shm"),
        metavar="PATH",
        help="folder in this computer's memory for the files of --device",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=_MODELS,
        metavar="MODEL",
        help="vgg16, vgg19, dpn92, simpledla, or tiny for a trial run",
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        metavar="FORMAT",
        help="torch, torch-mmap, safetensors, embstore, mapped (default: all that suit the kind of "
        "medium)",
    )
    training = parser.add_argument_group("training")
    add_count(training, "--steps", 2, "N", "batches to train on before the saves")
    add_count(training, "--batch-size", 16, "IMAGES", "images per batch")
    add_count(
        training, "--seed", 2021, "N", "seed of the generated images and the weights", type=seed
    )
    training.add_argument(
        "--cifar",
        type=Path,
        metavar="PATH",
        help="folder of CIFAR-10's Python files, or one of them, instead of generated images",
    )
    training.add_argument(
        "--keep",
        action="store_true",
        help="keep a checkpoint for --resume on the first medium, in its first format other than "
        "embstore",
    )
    training.add_argument(
        "--resume",
        action="store_true",
        help="resume from the checkpoint of --keep, to the same bits as without a stop",
    )
    fairness = parser.add_argument_group("measuring")
    add_count(fairness, "--repeats", 5, "N", "saves and loads of each format; figures are medians")
    fairness.add_argument(
        "--drop-caches",
        choices=("posix_fadvise", "drop_caches"),
        help="how to empty the page cache before cold loads (default: drop_caches as root in a "
        "guest of the lab, posix_fadvise everywhere else)",
    )
    fairness.add_argument(
        "--background",
        action="store_true",
        help="save a copy in a thread, so that training waits only for the copy",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        nargs="?",
        const="",
        metavar="FILE",
        help="print one JSON document; with a FILE, write it there and print the tables",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for bad arguments or data, 1 for a bad run."""
    return run_command(argument_parser(), argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from benchmarks.checkpoint_io import report as reports
    from benchmarks.checkpoint_io.measure import measure_arms
    from benchmarks.checkpoint_io.run_environment import (
        default_eviction,
        in_lab_guest,
        rates_kind,
    )
    from benchmarks.checkpoint_io.yardstick import measure_yardstick
    from pmemlab.results import results_console

    media = _media(arguments)
    json_file = Path(arguments.json) if arguments.json else None
    check_output("--json", json_file)
    arms = _arms(media, arguments.formats)
    kept_in = _kept_in(arms) if arguments.keep or arguments.resume else arms[0]
    _check_models(arguments.models)
    images = _images(arguments)
    guest = in_lab_guest()
    eviction = arguments.drop_caches or default_eviction(guest)
    results: list[ArmResult] = []
    models: list[dict[str, Any]] = []
    largest = 0
    with progress_bar("") as show:

        def progress(title: str) -> None:
            show(description=title)

        for model in arguments.models:
            trainer = _trained(arguments, model, images, kept_in, progress)
            checkpoint = trainer.checkpoint()
            largest = max(largest, checkpoint.tensor_bytes)
            models.append(_model_document(trainer, checkpoint))
            _check_room(arms, checkpoint)
            if arguments.keep:
                from benchmarks.checkpoint_io.kept_checkpoint import save_kept

                save_kept(*kept_in, model, checkpoint)
            results += measure_arms(
                model,
                checkpoint,
                arms,
                repeats=arguments.repeats,
                eviction=eviction,
                background=arguments.background,
                progress=progress,
            )
        yardsticks = []
        for medium in media:
            progress(f"yardstick of {medium.name}")
            yardsticks.append(measure_yardstick(medium, largest, arguments.repeats))
    report = reports.Report(rates_kind(guest), media, yardsticks, results)
    if arguments.json is not None:
        text = json.dumps(_document(arguments, report, models, eviction, guest))
        if json_file is None:
            print(text)
            return
        # Written whole or not at all, so that a folder of results has no partial files.
        write_output("--json", json_file, f"{text}\n")
    text = reports.tables(report, max(shutil.get_terminal_size((120, 24)).columns, 100))
    results_console().out(text)


def _media(arguments: argparse.Namespace) -> list[Medium]:
    """Returns the media of --medium, then those of --device."""
    from benchmarks.checkpoint_io.medium import paced_medium, parse_medium
    from pmemlab.model.devices import load_device

    media = [parse_medium(text) for text in arguments.medium]
    media += [paced_medium(load_device(name), arguments.paced_in) for name in arguments.device]
    if not media:
        raise MediumError("--medium, --device: where to? give one at least")
    names = [medium.name for medium in media]
    for name in names:
        if names.count(name) > 1:
            raise MediumError(f"--medium, --device: two of them are named {name}")
    return media


def _arms(media: Sequence[Medium], formats: Sequence[str] | None) -> list[tuple[Medium, str]]:
    from benchmarks.checkpoint_io.formats import FORMATS
    from benchmarks.checkpoint_io.measure import formats_on

    for name in formats or ():
        if name not in FORMATS:
            raise DataError(f"--formats: {name!r} is unknown; there are {', '.join(FORMATS)}")
    arms = []
    for medium in media:
        chosen = [name for name in formats_on(medium) if not formats or name in formats]
        if not chosen:
            raise DataError(
                f"--formats: none of {', '.join(formats or ())} is for medium {medium.name}, of "
                f"kind {medium.kind}; there are {', '.join(formats_on(medium))}"
            )
        arms += [(medium, name) for name in chosen]
    return arms


def _check_room(arms: Sequence[tuple[Medium, str]], checkpoint: Checkpoint) -> None:
    """Checks that the folder of --paced-in has room, before minutes of saving. Raises
    MediumError.
    """
    from benchmarks.checkpoint_io.formats import MAPPED_FORMATS

    paced = [(medium, name) for medium, name in arms if medium.paced_as is not None]
    if not paced:
        return
    # One copy per arm, one more during a replacement; a mapped file has room for two.
    copies = len(paced) + 1 + sum(name in MAPPED_FORMATS for _, name in paced)
    needed_mb = copies * checkpoint.tensor_bytes / 1e6
    folder = paced[0][0].path
    room_mb = shutil.disk_usage(folder).free / 1e6
    if needed_mb > room_mb:
        raise MediumError(
            f"--paced-in: {folder} has room for {room_mb:,.0f} MB, and {len(paced)} arms need "
            f"{needed_mb:,.0f}; give another folder in memory, or fewer of --device and --formats"
        )


def _kept_in(arms: Sequence[tuple[Medium, str]]) -> tuple[Medium, str]:
    """Returns the arm that --keep and --resume use."""
    for medium, name in arms:
        if name != "embstore":
            return medium, name
    raise DataError("--keep and --resume: embstore saves a table, not training; add a format")


def _check_models(names: Sequence[str]) -> None:
    from benchmarks.checkpoint_io.models import MODELS

    for name in names:
        if name not in MODELS:
            raise DataError(f"--models: {name!r} is unknown; there are {', '.join(MODELS)}")


def _images(arguments: argparse.Namespace) -> Images:
    from benchmarks.checkpoint_io.images import cifar_images, generated_images

    if arguments.cifar:
        return cifar_images(arguments.cifar)
    return generated_images(_GENERATED_IMAGES, arguments.seed)


def _trained(
    arguments: argparse.Namespace,
    model: str,
    images: Images,
    kept_in: tuple[Medium, str],
    progress: Callable[[str], None],
) -> Trainer:
    from benchmarks.checkpoint_io.training import Trainer

    trainer = Trainer(model, images, batch_size=arguments.batch_size, seed=arguments.seed)
    if arguments.resume:
        from benchmarks.checkpoint_io.kept_checkpoint import load_kept

        trainer.resume(load_kept(*kept_in, model))
    for step in range(1, arguments.steps + 1):
        progress(f"{model}: training, step {step} of {arguments.steps}")
        try:
            trainer.step()
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):  # no type of its own on a CPU
                raise
            raise DataError(
                f"--batch-size {arguments.batch_size}: a step doesn't fit this computer's memory; "
                "give fewer"
            ) from None
    return trainer


def _model_document(trainer: Trainer, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "name": trainer.model_name,
        "parameters": trainer.parameter_count,
        "tensor_bytes": checkpoint.tensor_bytes,
        "steps": len(trainer.losses),
        "losses": [loss.hex() for loss in trainer.losses],
    }


def _document(
    arguments: argparse.Namespace,
    report: Report,
    models: list[dict[str, Any]],
    eviction: str,
    guest: bool,
) -> dict[str, Any]:
    import torch

    from pmemlab.scenarios.metrics import commit_of

    return {
        "workload": "checkpoint_io",
        "kind": report.kind,
        "in_lab_guest": guest,
        "kernel": os.uname().release,
        "commit": commit_of(Path(__file__).parent),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "arguments": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
        },
        "caches_dropped_by": eviction,
        "media": [medium.as_json() for medium in report.media],
        "yardsticks": [asdict(yardstick) for yardstick in report.yardsticks],
        "models": models,
        "arms": report.as_json(),
    }
