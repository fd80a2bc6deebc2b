"""The sections on PMem-based OpenEmbedding: the paper's times and costs, and the model's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pmemlab.model.fidelity.rows import Row, Section
from pmemlab.model.openembedding.model import Engine
from pmemlab.model.openembedding.prediction import Predictor, Question
from pmemlab.model.openembedding.published import Published, load_published
from pmemlab.model.openembedding.setup import Setup, load_setup

__all__ = ["openembedding_sections"]

_AIM = 15.0
_MAX_GPUS = 16
_SMALLEST_CACHE_GB = 0.01  # figure 8's times are relative to this cache's
_NOTED_CACHE_GB = 2.048


def openembedding_sections(
    on_step: Callable[[str], object], published: Published | None = None
) -> tuple[Section, ...]:
    """Returns the sections. published: by default the paper's figures."""
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
        f"{published.source}, figures 3 and 7: the time of an epoch without checkpoints. The model "
        "is fitted to the times of DRAM-PS on 4, 8 and 16 GPUs (1, 0.60, 0.35) and of PMem-Hash on "
        "4 (2.16), and to no other time; the size of a cached row follows from the published miss "
        "rate. The engine counts the accesses of the cache. The predictions are not blind: the "
        "author of the model's terms had read the paper. The assumptions and their reasons: "
        "[pmemlab/model/openembedding/README.md](pmemlab/model/openembedding/README.md).",
        tuple(rows),
        (_ori_cache_sensitivity(predictor),),
    )


def _ori_cache_sensitivity(predictor: Predictor) -> str:
    setup, asked = predictor.setup, Question(_MAX_GPUS)
    workload, servers = setup.workload, setup.servers
    gpus, handover_ns = 2 * workload.step_gpus, 0.75 * servers.line_handover_ns

    def with_changes(changed: Setup) -> float:
        model = dataclasses.replace(predictor.model, setup=changed)
        accesses = predictor.cache_accesses(asked)
        return model.relative_time(Engine.ORI_CACHE, _MAX_GPUS, accesses)

    more_gpus = dataclasses.replace(workload, step_gpus=gpus)
    faster = dataclasses.replace(servers, line_handover_ns=handover_ns)
    return (
        "Ori-Cache's prediction depends on two figures that the paper doesn't give. If the step of "
        f"its figure 2 were a step of {gpus} GPUs, not {workload.step_gpus}, {_MAX_GPUS} GPUs "
        f"would be predicted {with_changes(dataclasses.replace(setup, workload=more_gpus)):.2f}; "
        "if a "
        f"lock's line came from another core in {handover_ns:g} ns, not "
        f"{servers.line_handover_ns:g}, "
        f"{with_changes(dataclasses.replace(setup, servers=faster)):.2f}. Its error grows with the "
        "number of GPUs: waiting for one lock seems to cost more with more waiting threads, which "
        "the model leaves out."
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
                Question(_MAX_GPUS, minutes=minutes),
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
        Row(name, published.recovery_s[key], predictor.model.recovery_s(engine), "s")
        for name, key, engine in (
            ("Recovery, PMem-OE", "pmem_oe", Engine.PMEM_OE),
            ("Recovery, DRAM-PS from PMem", "dram_from_pmem", Engine.DRAM_PS),
        )
    ]
    return Section(
        "PMem-based OpenEmbedding: checkpoints",
        "Figures 6, 12 and 14. Times with checkpoints are relative to DRAM-PS with checkpoints, "
        "which is predicted too. Nothing is fitted to these figures.",
        tuple(rows),
        (
            "Ori-Cache on 4 GPUs is predicted too slow even without checkpoints, and DRAM-PS with "
            "checkpoints, to which its time is relative, too fast. By the paper's own figures "
            "(table V, figures 7 and 12) incremental checkpoints cost DRAM-PS a tenth of its time "
            "there, more than Ori-Cache, although its rows are read from DRAM and lie on two "
            "nodes. The paper doesn't say what DRAM-PS does besides copying rows.",
            "Recovery of DRAM-PS from PMem takes over twice as long as the scan, the index and the "
            "stores of rows that the model knows. Recovery from SSD is left out, since the paper "
            "doesn't describe that SSD.",
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
            # DRAM-PS's time is the published one, so only the multiplication is predicted.
            None if engine == Engine.DRAM_PS.value else _AIM,
            "its time is the published one" if engine == Engine.DRAM_PS.value else "",
        )
        for engine, dollars in published.epoch_dollars.items()
    ]
    return Section(
        "PMem-based OpenEmbedding: cost of an epoch",
        "Table V: servers alone, a checkpoint every 20 minutes. DRAM-PS takes the published "
        f"{hours} h; the others' times are predicted relative to that.",
        tuple(rows),
        ("Ori-Cache's cost is as much too high as its time on 4 GPUs, above.",),
    )


def _other_figures(predictor: Predictor, published: Published) -> Section:
    rows = [
        Row(
            f"Miss rate, skew {skew:g}",
            percent,
            predictor.cache_accesses(Question(_MAX_GPUS, skew=skew)).misses * 100,
            "%",
            # The size of a cached row follows from the first of these figures, so it is no
            # prediction.
            None if skew == 1 else _AIM,
            "the size of a cached row follows from this figure" if skew == 1 else "",
        )
        for skew, percent in published.miss_rate_percent.items()
    ]
    for name, times in published.skew.items():
        for skew, time in times.items():
            question = Question(_MAX_GPUS, skew=skew)
            predicted = predictor.plain(Engine(name), question)
            dram = predictor.plain(Engine.DRAM_PS, question)
            rows.append(
                Row(
                    f"{Engine(name).title}, skew {skew:g}",
                    time,
                    predicted / dram,
                    "of DRAM-PS",
                    _AIM,
                )
            )
    rows += _cache_sizes(predictor, published)
    return Section(
        "PMem-based OpenEmbedding: its other figures",
        "Figures 8 and 11, 16 GPUs: `pmemlab model predict --cache-gb` and `--skew` ask for them.",
        tuple(rows),
        (
            "Figure 8 gives times relative to that with a cache of 0.01 GB, so an error of that "
            "time is in all its rows; the notes show times relative to 2 GB. A cache smaller than "
            "the rows of a step evicts some of them before their update, as in the paper's "
            "algorithm 2. The public source keeps a step's rows in DRAM instead, whatever size is "
            "set; by that rule, caches of up to 0.1 GB would all take the same time.",
            "In the paper, the largest cache still takes 7 % longer than DRAM-PS (0.61 of figure 8 "
            "is 0.374 of DRAM-PS on 4). The model hides all work of that cache, and has no other "
            "cost for it.",
            _small_cache_sensitivity(predictor),
            "Less skew slows Ori-Cache in the paper by half of DRAM-PS's time, with 3.5 % more "
            "misses. That is 1,500 ns for each further miss, as if all misses waited for one "
            "another. The model lets all threads serve misses. With 1,500 ns it would predict "
            "Ori-Cache on 4 GPUs far too slow, and the source of Ori-Cache isn't public.",
        ),
    )


def _cache_sizes(predictor: Predictor, published: Published) -> list[Row]:
    def predicted(cache_gb: float) -> float:
        return predictor.plain(Engine.PMEM_OE, Question(_MAX_GPUS, cache_gb=cache_gb))

    smallest, noted = predicted(_SMALLEST_CACHE_GB), predicted(_NOTED_CACHE_GB)
    noted_time = published.cache_size[_NOTED_CACHE_GB]
    return [
        Row(
            f"PMem-OE, cache of {cache_gb:g} GB",
            time,
            predicted(cache_gb) / smallest,
            f"of {_SMALLEST_CACHE_GB:g} GB",
            _AIM,
            f"of {_NOTED_CACHE_GB:g} GB: {predicted(cache_gb) / noted:.2f}, published "
            f"{time / noted_time:.2f}",
        )
        for cache_gb, time in published.cache_size.items()
    ]


def _small_cache_sensitivity(predictor: Predictor) -> str:
    setup, threads = predictor.setup, predictor.setup.servers.threads
    accesses = {
        cache_gb: predictor.cache_accesses(Question(_MAX_GPUS, cache_gb=cache_gb))
        for cache_gb in (_SMALLEST_CACHE_GB, _NOTED_CACHE_GB)
    }

    def ratio(largest_column: float) -> str:
        workload = dataclasses.replace(setup.workload, largest_column=largest_column)
        model = dataclasses.replace(
            predictor.model, setup=dataclasses.replace(setup, workload=workload)
        )
        smallest, noted = (
            model.relative_time(Engine.PMEM_OE, _MAX_GPUS, counted) for counted in accesses.values()
        )
        return f"{noted / smallest:.2f}"

    return (
        "One thread serves the misses of a column, and the paper says nothing of its columns. "
        f"With {setup.workload.largest_column:.1%} of misses in the largest, as in Criteo's "
        f"terabyte, the cache of {_NOTED_CACHE_GB:g} GB takes "
        f"{ratio(setup.workload.largest_column)} of the smallest's time. It would take "
        f"{ratio(0.25)} with a quarter, {ratio(0.5)} with a half, and {ratio(1 / threads)} if the "
        f"misses were spread over all {threads} threads."
    )
