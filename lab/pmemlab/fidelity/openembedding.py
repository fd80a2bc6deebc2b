"""The sections on PMem-based OpenEmbedding: the paper's times and costs, by the model of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pmemlab.fidelity.rows import Row, Section
from pmemlab.openembedding.checkpoints import recovery_s
from pmemlab.openembedding.model import Engine
from pmemlab.openembedding.prediction import Predictor, Question
from pmemlab.openembedding.published import Published, load_published
from pmemlab.openembedding.setup import Setup, load_setup

__all__ = ["openembedding_sections"]

_AIM = 15.0
_MOST_GPUS = 16


def openembedding_sections(
    on_step: Callable[[str], object], published: Published | None = None
) -> tuple[Section, ...]:
    """published: default: what the paper published."""
    published, setup = published or load_published(), load_setup()
    predictor = Predictor(
        setup, published.fitted, on_count=lambda what: on_step(f"OpenEmbedding: counting {what}")
    )
    return (
        _training_times(predictor, published),
        _checkpoints(predictor, published),
        _costs(predictor, published),
        _other_figures(predictor, published),
    )


def _training_times(predictor: Predictor, published: Published) -> Section:
    rows = [
        Row(
            f"{Engine(engine).title}, {gpus:g} GPUs",
            time,
            predictor.plain(Engine(engine), Question(int(gpus))),
            "of DRAM-PS on 4",
            _AIM,
        )
        for engine, times in published.plain.items()
        for gpus, time in times.items()
    ]
    return Section(
        "PMem-based OpenEmbedding: training times",
        f"{published.source}, figures 3 and 7; how long an epoch takes without checkpoints. Fitted "
        "are the times of DRAM-PS on 4, 8 and 16 GPUs (1, 0.60, 0.35) and of PMem-Hash on 4 "
        "(2.16), and no other time; what a cached row takes follows from the published miss rate. "
        "Accesses of the cache are counted by the engine. These are no blind predictions: who "
        "chose the model's terms had read the paper. What it assumes, and why: "
        "[pmemlab/openembedding/README.md](pmemlab/openembedding/README.md).",
        tuple(rows),
        (_what_ori_cache_hangs_on(predictor),),
    )


def _what_ori_cache_hangs_on(predictor: Predictor) -> str:
    setup, asked = predictor.setup, Question(_MOST_GPUS)
    workload, servers = setup.workload, setup.servers
    gpus, handover_ns = 2 * workload.step_gpus, 0.75 * servers.line_handover_ns

    def otherwise(changed: Setup) -> float:
        model = dataclasses.replace(predictor.model, setup=changed)
        accesses = predictor.cache_accesses(asked)
        return model.relative_time(Engine.ORI_CACHE, _MOST_GPUS, accesses)

    more_gpus = dataclasses.replace(workload, step_gpus=gpus)
    faster = dataclasses.replace(servers, line_handover_ns=handover_ns)
    return (
        f"Ori-Cache hangs on two figures that the paper doesn't give. If the step of its figure 2 "
        f"were one of {gpus} GPUs, not {workload.step_gpus}, {_MOST_GPUS} GPUs would be predicted "
        f"{otherwise(dataclasses.replace(setup, workload=more_gpus)):.2f}; if a lock's line came "
        f"from another core in {handover_ns:g} ns, not {servers.line_handover_ns:g}, "
        f"{otherwise(dataclasses.replace(setup, servers=faster)):.2f}. Its error grows with GPUs: "
        "threads that wait for one lock seem to cost more the more of them there are, which the "
        "model doesn't know."
    )


def _checkpoints(predictor: Predictor, published: Published) -> Section:
    rows = [
        Row(
            f"{Engine(engine).title}, {gpus:g} GPUs, every 20 min",
            time,
            predictor.with_checkpoints(Engine(engine), Question(int(gpus))),
            "of DRAM-PS on 4",
            _AIM,
        )
        for engine, times in published.with_checkpoints.items()
        for gpus, time in times.items()
    ]
    for kind, slowdowns in published.checkpoint_interval.items():
        for minutes, slowdown in slowdowns.items():
            predicted = predictor.slowdown(
                Engine.PMEM_OE,
                Question(_MOST_GPUS, minutes=minutes),
                incremental=kind == "incremental",
            )
            rows.append(
                Row(
                    f"PMem-OE, {kind} checkpoint every {minutes:g} min",
                    slowdown,
                    predicted,
                    "of no checkpoints",
                    _AIM,
                    f"the checkpoints alone: {predicted - 1:.1%}, published {slowdown - 1:.1%}",
                )
            )
    rows += [
        Row(name, published.recovery_s[key], recovery_s(predictor.model, engine), "s")
        for name, key, engine in (
            ("Recovery, PMem-OE", "pmem_oe", Engine.PMEM_OE),
            ("Recovery, DRAM-PS from PMem", "dram_from_pmem", Engine.DRAM_PS),
        )
    ]
    return Section(
        "PMem-based OpenEmbedding: checkpoints",
        "Figures 6, 12 and 14. Times with checkpoints are of DRAM-PS with checkpoints, which is "
        "predicted too. Nothing is fitted to any of them.",
        tuple(rows),
        (
            "Ori-Cache on 4 GPUs is predicted too slow already without checkpoints, and DRAM-PS "
            "with checkpoints, of which its time is told, too fast. By the paper's own figures "
            "(table V, figures 7 and 12) incremental checkpoints cost DRAM-PS a tenth of its time "
            "there, more than Ori-Cache, although its rows are read from DRAM and lie on two "
            "nodes. What DRAM-PS does besides copying rows, the paper doesn't say.",
            "Recovery of DRAM-PS from PMem takes over twice as long as the scan, the index and "
            "the stores of rows that the model knows. Recovery from SSD is left out: of that SSD "
            "nothing is said.",
        ),
    )


def _costs(predictor: Predictor, published: Published) -> Section:
    hours = published.epoch_hours["dram_ps"]
    rows = [
        Row(
            f"{Engine(engine).title}, an epoch on 4 GPUs",
            dollars,
            predictor.epoch_dollars(Engine(engine), Question(4), hours),
            "$",
            # Of this one only the multiplication is foretold.
            None if engine == Engine.DRAM_PS.value else _AIM,
            "its time is the published one" if engine == Engine.DRAM_PS.value else "",
        )
        for engine, dollars in published.epoch_dollars.items()
    ]
    return Section(
        "PMem-based OpenEmbedding: cost of an epoch",
        f"Table V: servers alone, a checkpoint every 20 minutes. DRAM-PS takes the published "
        f"{hours} h; the others' times are predicted, of that.",
        tuple(rows),
        ("Ori-Cache is as much too dear as it is too slow on 4 GPUs, above.",),
    )


def _other_figures(predictor: Predictor, published: Published) -> Section:
    rows = [
        Row(
            f"Miss rate, skew {skew:g}",
            percent,
            predictor.cache_accesses(Question(_MOST_GPUS, skew=skew)).misses * 100,
            "%",
            note="what a cached row takes follows from this one" if skew == 1 else "",
        )
        for skew, percent in published.miss_rate_percent.items()
    ]
    for name, times in published.skew.items():
        for skew, time in times.items():
            asked = Question(_MOST_GPUS, skew=skew)
            predicted = predictor.plain(Engine(name), asked)
            dram = predictor.plain(Engine.DRAM_PS, asked)
            rows.append(
                Row(f"{Engine(name).title}, skew {skew:g}", time, predicted / dram, "of DRAM-PS")
            )
    smallest = predictor.plain(Engine.PMEM_OE, Question(_MOST_GPUS, cache_gb=0.01))
    for cache_gb, time in published.cache_size.items():
        predicted = predictor.plain(Engine.PMEM_OE, Question(_MOST_GPUS, cache_gb=cache_gb))
        rows.append(
            Row(f"PMem-OE, cache of {cache_gb:g} GB", time, predicted / smallest, "of 0.01 GB")
        )
    return Section(
        "PMem-based OpenEmbedding: its other figures",
        "Figures 8 and 11, 16 GPUs: `pmemlab openembedding --cache-gb` and `--skew` ask for them.",
        tuple(rows),
        (
            "Of skew the paper gives three points, none within the most popular 0.05 % of rows, "
            "where caches of 2 GB and less do their work; there the table follows the scenarios' "
            "draws. So less skew misses more often here than in the paper. And what a cache costs "
            "that is smaller than what a step pulls is underestimated: misses in the paper cost "
            "more than a read and a write of persistent memory at its bandwidth.",
        ),
    )
