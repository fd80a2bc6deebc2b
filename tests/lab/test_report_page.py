"""The report's page for a folder of results: what it shows, and what it must never show."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_results import CHECKPOINTS, FIDELITY, PLAN, RUN, emulated, throughput, write_results

from pmemlab.cli import main
from pmemlab.errors import LabError, MissingRequirementError
from pmemlab.report.command import write_page
from pmemlab.scenarios.metrics import Metric, ResultsFile

pytest.importorskip("matplotlib", reason="matplotlib draws figures; pip install 'pmemlab[report]'")

MAKERS = {
    "rates": "pmemlab test scenarios/throughput",
    "step-times": "pmemlab test scenarios/throughput",
    "hit-rates": "make cache-sizes",
    "memory-mode": "make cache-sizes",
    "prices": "pmemlab model plan",
    "checkpoints": "make checkpoints",
    "fidelity": "pmemlab model fidelity",
    "works": "make scenarios",
    "proofs": "make scenarios",
}


def page_of(folder: Path) -> str:
    path = folder / "report.html"
    write_page(folder, path)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page for results of every kind, which takes a second to draw."""
    return page_of(write_results(tmp_path_factory.mktemp("results")))


def write_few_results(folder: Path) -> Path:
    """Writes only results that need a single figure, for tests that don't look at the others."""
    for name, document in (("plan", PLAN), ("fidelity", FIDELITY)):
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def page_of_metrics(folder: Path, *metrics: list[Metric]) -> str:
    with ResultsFile(folder) as results:
        for of_run in metrics:
            results.append(of_run)
    return page_of(folder)


def section(page: str, anchor: str) -> str:
    found = re.search(rf'<section aria-labelledby="{anchor}">(.*?)</section>', page, re.DOTALL)
    assert found is not None, f"the page has no section {anchor}"
    return found[1]


class PageText(HTMLParser):
    """The text of a page, without its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def words(html: str) -> str:
    return PageText(html).text


def test_every_section_is_shown_if_results_have_its_data(whole_page: str) -> None:
    for anchor in MAKERS:
        assert section(whole_page, anchor)
    assert "What else this page can show" not in words(whole_page)
    assert words(whole_page).startswith("Embedding tables by storage type and device")


@pytest.fixture(scope="module")
def sparse_pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A page for checkpoints alone, and a page for a guest's run without metrics of its tiers."""
    (folder := tmp_path_factory.mktemp("checkpoints")).joinpath("checkpoints.json").write_text(
        json.dumps(CHECKPOINTS)
    )
    run = [metric for metric in emulated("memory-mode") if "first_tier" not in metric.name]
    return page_of(folder), page_of_metrics(tmp_path_factory.mktemp("run"), run)


@pytest.fixture(scope="module")
def page_of_throughput(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of_metrics(tmp_path_factory.mktemp("throughput"), *throughput())


@pytest.mark.parametrize("anchor", MAKERS)
def test_a_section_without_data_is_hidden_and_named_with_its_command_at_the_end(
    sparse_pages: tuple[str, str], anchor: str
) -> None:
    """Each section lacks data on one of the two pages."""
    of_checkpoints, of_run = sparse_pages
    page = of_checkpoints if anchor in ("works", "proofs") else of_run
    assert f'id="{anchor}"' not in page
    assert f'href="#{anchor}"' not in page
    end = page[page.index("What else this page can show") :]
    assert MAKERS[anchor] in words(end)


def test_runs_are_counted_only_on_a_page_that_has_some(sparse_pages: tuple[str, str]) -> None:
    of_checkpoints, of_run = map(words, sparse_pages)
    assert "1 run: 0 measured, 0 modelled from devices' published figures, 1 that say" in of_run
    assert "that say only that something works" not in of_checkpoints


def test_measured_paced_and_predicted_rates_look_different(page_of_throughput: str) -> None:
    part = section(page_of_throughput, "rates")
    text = words(part)
    for how in ("measured", "modelled: paced", "modelled: predicted"):
        assert how in text
    hatched = re.findall(r"fill: url\(#rates-0-wide-[^)]*\)", part)
    # One bar per prediction and per paced run, and two samples in the legend.
    assert len(hatched) == 6 + 4 + 2
    assert len(set(hatched)) == 2


def test_a_program_that_was_not_judged_is_not_listed_as_working(tmp_path: Path) -> None:
    judged = emulated("fsdax")
    ran = [replace(each, scenario="mine", not_judged=("where rows lie",)) for each in judged]
    page = page_of_metrics(tmp_path, judged, ran)
    text = words(section(page, "works"))
    works, _, not_judged = text.partition("programs that were not judged")
    assert "1 run whose own rates say nothing" in works
    assert "fsdax DRAM_PMEM" in works
    assert "mine" not in works
    assert "mine DRAM_PMEM guest (tcg) where rows lie" in not_judged
    (alone := tmp_path / "alone").mkdir()
    page = words(section(page_of_metrics(alone, ran), "works"))
    assert "mine DRAM_PMEM" in page
    assert "trained to the rows and losses of DRAM" not in page


def test_a_functional_only_rate_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "checkpoints.json").write_text(json.dumps(CHECKPOINTS))
    page = page_of_metrics(tmp_path, emulated("fsdax", rate=231.75), *throughput())
    text = words(page)
    assert "231" not in text
    assert "232" not in text
    assert "fsdax DRAM_PMEM guest (tcg)" in words(section(page, "works"))
    checkpoints = words(section(page, "checkpoints"))
    assert "sata-in-a-guest torch vgg16" in checkpoints
    assert "0.12" not in checkpoints


def test_each_kind_of_machine_has_a_figure_of_its_own(tmp_path: Path) -> None:
    in_guest = replace(RUN, machine="guest", accelerator="kvm", facts={}, value=1.0)
    part = section(page_of_metrics(tmp_path, [RUN], [in_guest]), "rates")
    assert part.count("<figure") == 2


def test_memory_mode_is_compared_with_app_direct_on_the_same_device(
    page_of_throughput: str,
) -> None:
    part = section(page_of_throughput, "memory-mode")
    text = words(part)
    assert "optane-100-x6 in both modes" in text
    assert "memory mode DRAM optane-100-x6-memory-mode 9,100 modelled, predicted" in text
    assert "app direct DRAM_PMEM ddr4-2666-x6 + optane-100-x6 11,800" in text
    assert 'aria-label="' in part
    assert "has 1.30 times the rate of memory mode" in part


def test_the_table_of_step_times_has_the_parts_and_their_sum(page_of_throughput: str) -> None:
    text = words(section(page_of_throughput, "step-times"))
    assert "compute first tier second tier third tier step times are" in text
    # 2048 samples at 14,000 samples/s take 146.29 ms, 60 of them on the CPU.
    assert "DRAM ddr4-2666-x6 60.00 86.29 – – 146.29 modelled, predicted" in text


def test_each_machine_shows_the_demanded_facts_and_all_its_facts(tmp_path: Path) -> None:
    part = section(page_of_metrics(tmp_path, emulated("fsdax"), [RUN]), "proofs")
    text = words(part)
    assert (
        "dram process, unproved 6.18.44 doesn't have, or can't prove: cpus "
        "pmem.path /mnt/pmem0 -> /dev/shm: DRAM in place of PMem" in text
    )
    assert "facts that are demanded hold" in text
    assert "mount.dax true yes" in text
    assert "mount.filesystem" in text


def test_predictions_beyond_their_aim_say_so_and_why(whole_page: str) -> None:
    part = section(whole_page, "fidelity")
    text = words(part)
    assert "1 of 2 within their aim" in text
    assert text.index("PMem-Hash") < text.index("Each figure is foretold")  # misses come first
    assert "PMem-Hash, 8 GPUs 1.71 1.31 of DRAM-PS on 4 -23.4 % ±15 % no the network isn't" in text
    assert "optane-100-x6, random read 10,200 9,802 MB/s -3.9 % ±10 % yes" in text
    assert "without an aim 2 2.5 s +25.0 %" in text
    assert "see the README." in text
    assert "Of the network the paper says nothing." in text
    assert "README.md" not in part


def test_choices_with_a_price_are_drawn_and_the_others_listed(whole_page: str) -> None:
    part = section(whole_page, "prices")
    text = words(part)
    assert "plan.json plans for rows 2,000,000,000, dim 64, skew 1.05, training yes." in text
    assert "3 points. The cheapest is DRAM_PMEM on ddr4-2666-x6 + optane-100-x6 for $4,100" in part
    # Two machines have 2 × 3.1 million look-ups per second.
    assert (
        "1 DRAM_PMEM ddr4-2666-x6 + optane-100-x6 4,100 0.0003 2 × re6p.13xlarge 6,200,000" in text
    )
    assert "Without a price: 1 of the choices in plan.json" in text
    assert "4 PMEM_MEMKIND cxl-asic 2,200,000" in text
    assert "no machine in prices.yaml holds cxl-asic" in text


def test_choices_on_gpus_have_their_own_marker_and_are_called_bounds(
    tmp_path: Path,
) -> None:
    folder = write_few_results(tmp_path)
    bounds = "lookups a second of choices with HBM are bounds"
    assert bounds not in words(page_of(folder))
    [first, *others] = json.loads((folder / "plan.json").read_text())["plans"]
    plan = {**PLAN, "plans": [{**first, "storage_type": "HBM_DRAM", "step_ms": 0.0731}, *others]}
    (folder / "plan.json").write_text(json.dumps(plan))
    part = section(page_of(folder), "prices")
    assert bounds in words(part)
    assert " 0.0731 " in words(part)
    assert "beside such bounds further down" in words(part)
    (folder / "fidelity.json").unlink()
    assert "further down" not in words(section(page_of(folder), "prices"))
    assert "with the memory of GPUs" in part
    assert "with persistent memory" not in part


def test_a_plan_s_hit_rates_are_shown_beside_those_of_runs(whole_page: str) -> None:
    text = words(section(whole_page, "hit-rates"))
    assert "plan.json 5.00% 52.8 GB 87.0% modelled, by a plan" in text
    assert "plan.json 10.00% 106 GB 91.0% modelled, by a plan" in text
    assert "fsdax, DRAM_PMEM on guest (tcg) 6.25% 320 MB 50.0% counted in a run" in text


def test_an_unknown_document_is_named_on_the_page(tmp_path: Path) -> None:
    write_few_results(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    assert "other.json is no document that a report knows" in words(page_of(tmp_path))


def test_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    evil = replace(RUN, scenario='<script>alert("&")</script>', storage_type="<b>DRAM</b>")
    page = page_of_metrics(tmp_path, [evil])
    assert "<script" not in page
    assert "<b>" not in page
    assert '<script>alert("&")</script>' in words(page)


@pytest.mark.parametrize("rate", [0.0, 1e-9, 1e15, 1e30])
def test_any_rate_can_be_drawn(tmp_path: Path, rate: float) -> None:
    step = replace(RUN, name="step_ms.compute", value=rate, unit="ms")
    page = page_of_metrics(tmp_path, [replace(RUN, value=rate), step])
    assert page.count("<figure") == 2
    assert "nan" not in words(page)


def test_the_same_results_make_the_same_page_byte_for_byte(tmp_path: Path, whole_page: str) -> None:
    assert page_of(write_results(tmp_path)) == whole_page


def test_the_page_is_smaller_than_300_kb(whole_page: str) -> None:
    assert len(whole_page.encode()) < 300_000


def test_the_command_writes_the_page_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_few_results(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"written: {page}\n"
    assert "other.json: is no document" in captured.err
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists()


def test_the_command_ends_with_status_2_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "has no results" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write_few_results(tmp_path / "results")
    with pytest.raises(LabError, match=r"missing/page\.html: the report can't be written"):
        write_page(tmp_path / "results", tmp_path / "missing/page.html")


def test_without_matplotlib_the_extra_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingRequirementError, match=r"pip install 'pmemlab\[report\]'"):
        write_page(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_sizes_of_dram_are_shown_with_times_and_hit_rates_of_both_modes(whole_page: str) -> None:
    modes = section(whole_page, "memory-mode")
    row = "307 MB 30.0% 16.0 24.0 98.8% 94.2% 2.50 2.00 modelled, predicted"
    assert row in words(modes)
    assert "memory mode takes 1.50 to 1.50 times as long as app direct" in modes
    hits = words(section(whole_page, "hit-rates"))
    table = "2,000,000 rows of dim 64 with Adagrad's sums"
    assert f"{table} 0.50% 5.12 MB 93.5% counted in a run" in hits
    assert f"{table}, in memory mode 30.00% 307 MB 94.2% modelled, as memory mode" in hits


def test_checkpoints_are_shown_by_device_and_format_with_training_s_wait(whole_page: str) -> None:
    part = section(whole_page, "checkpoints")
    text = words(part)
    assert "disk, of this computer safetensors 0.70 measured" in text
    assert "pmem paced as optane-100-x6 mapped 2.10 modelled, paced" in text
    assert "disk, of this computer safetensors 1.10 2.40 measured" in text  # cold, warm
    assert "optane-100-x6 mapped 56 modelled, paced" in text
    assert "The best is mapped on pmem paced as optane-100-x6 with 56." in part
    assert "url(#checkpoints-0-save-wide-" in part  # modelled bars are hatched
