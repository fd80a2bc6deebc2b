"""The measurements that are stored for the fidelity page, and small runs of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from full_disk import fill_disk
from planned_devices import FixedTimeDevice

from embstore.devices import Access
from pmemlab.cli import main
from pmemlab.errors import LabError, MeasuringError
from pmemlab.model import devices
from pmemlab.model.devices import load_device
from pmemlab.model.fidelity import command, this_computer
from pmemlab.model.fidelity.measured import (
    Comparison,
    Measured,
    measured_now,
    measured_sections,
    read_measured,
    store_measurement,
)
from pmemlab.model.fidelity.numa_nodes import NodeTraining, compare_nodes
from pmemlab.model.fidelity.paced_bandwidth import (
    MeasuringEffort,
    Point,
    SlowedDevice,
    compare_paced,
    without_point,
)
from pmemlab.model.fidelity.this_computer import Training, compare_disk, compare_this_computer

NEAR = Comparison("near", 100.0, 105.0, "MB/s", 5, 3.0, "7 times as slow")
FAR = replace(NEAR, name="far", predicted=150.0)
SMALL = Training(rows=4000, batch=256, steps=3, repetitions=1)


def test_a_measurement_is_stored_with_date_and_computer_beside_the_others(
    tmp_path: Path,
) -> None:
    measured_file = tmp_path / "measured.json"
    paced = measured_now([NEAR], ["one: why"])
    store_measurement(measured_file, "paced", paced)
    store_measurement(measured_file, "this-computer", measured_now([FAR], []))
    assert read_measured(measured_file)["paced"] == paced
    assert read_measured(measured_file)["this-computer"].comparisons == (FAR,)
    store_measurement(measured_file, "this-computer", measured_now([NEAR], []))
    assert read_measured(measured_file)["this-computer"].comparisons == (NEAR,)
    assert "UTC" in paced.when
    assert "CPUs" in paced.computer


def test_the_page_shows_the_stored_measurements_and_explains_missed_aims(tmp_path: Path) -> None:
    measured_file = tmp_path / "measured.json"
    assert measured_sections(measured_file) == ()
    store_measurement(
        measured_file, "paced", Measured("today", "a computer", (NEAR,), ("one: why",))
    )
    (section,) = measured_sections(measured_file)
    assert [(row.name, row.published, row.predicted, row.reached) for row in section.rows] == [
        ("near", 100.0, 105.0, True)
    ]
    assert "today, on a computer" in section.intro
    assert section.remarks == ("one: why",)
    store_measurement(measured_file, "paced", Measured("today", "a computer", (NEAR, FAR), ()))
    (section,) = measured_sections(measured_file)
    assert [row.name for row in section.missed] == ["far"]
    assert len(section.remarks) == 1


def test_a_full_disk_keeps_the_stored_measurements_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_file, page = tmp_path / "measured.json", tmp_path / "FIDELITY.md"
    store_measurement(measured_file, "paced", Measured("today", "here", (NEAR,), ()))
    page.write_text("before")
    monkeypatch.setattr(command, "make_sections", lambda measured, **_: measured_sections(measured))
    fill_disk(monkeypatch)
    with pytest.raises(LabError, match=r"measured.json: can't be written: No space left"):
        store_measurement(measured_file, "paced", Measured("later", "here", (FAR,), ()))
    assert read_measured(measured_file)["paced"].when == "today"
    assert main(["model", "fidelity", "--measured", str(measured_file), "--write", str(page)]) == 2
    assert page.read_text() == "before"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the file: must be a mapping of fields"),
        ('{"other": {}}', "other: is no field here; there are paced, this-computer"),
        ('{"paced": {}}', "paced.when: is missing"),
        ('{"paced": 3}', "paced: "),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, text: str, message: str) -> None:
    measured_file = tmp_path / "measured.json"
    measured_file.write_text(text)
    with pytest.raises(LabError, match=rf"measured.json.*{message}"):
        read_measured(measured_file)


def test_a_figure_that_is_not_a_number_is_refused_by_its_field(tmp_path: Path) -> None:
    measured_file = tmp_path / "measured.json"
    store_measurement(measured_file, "paced", Measured("today", "here", (NEAR,), ()))
    document = json.loads(measured_file.read_text())
    document["paced"]["comparisons"][0]["truth"] = "fast"
    measured_file.write_text(json.dumps(document))
    with pytest.raises(LabError, match=r"paced.comparisons\[0\].truth: must be a number of at"):
        read_measured(measured_file)


def test_the_device_lacks_the_figure_that_it_is_compared_with() -> None:
    whole = load_device("optane-100-x1")
    device, published = without_point(whole, 512, 4)
    assert published == whole.bandwidth_mb_per_s("load", "random", 512, 4)
    for row in device.file.bandwidth["load", "random"].rows:
        assert row.size_bytes != 512
        assert 4 not in row.threads
    assert device.cpu_cache_bytes == 0


@pytest.mark.parametrize("size_threads", [(64, 4), (512, 1), (500, 4)])
def test_a_figure_without_neighbours_cannot_be_predicted(size_threads: tuple[int, int]) -> None:
    with pytest.raises(LabError, match="don't lie between published figures"):
        without_point(load_device("optane-100-x1"), *size_threads)


def test_a_paced_tier_is_not_faster_than_its_device() -> None:
    point = Point("optane-100-x1", 4096, 2)
    points: list[str] = []
    effort = MeasuringEffort(seconds=0.05, repetitions=2, margin=5.0)
    (compared,), left_out = compare_paced([point], effort, points.append)
    device, published = without_point(load_device(point.device), 4096, 2)
    assert compared.truth == published
    # Each thread may end while it still owes less than the shortest sleep.
    assert 0 < compared.predicted < 1.2 * device.bandwidth_mb_per_s("load", "random", 4096, 2)
    assert left_out == []
    assert points == [str(point)]


def test_a_point_that_cannot_be_predicted_is_named_as_left_out() -> None:
    compared, left_out = compare_paced(
        [Point("nvme-p4510", 4096, 2), Point("optane-100-x1", 64, 2)],
        MeasuringEffort(),
        lambda _: None,
    )
    assert compared == []
    assert "nvme-p4510" in left_out[0]
    assert "64 bytes by 2 threads" in left_out[1]


def test_slow_motion_multiplies_all_times() -> None:
    whole = load_device("ddr4-2666-x6")
    slow = SlowedDevice(whole, 7.0)
    assert slow.time_ns(Access.LOAD, 256, 3) == 7 * whole.time_ns(Access.LOAD, 256, 3)
    assert slow.alone_ns(Access.LOAD, 256) == 7 * whole.alone_ns(Access.LOAD, 256)


@dataclass(frozen=True)
class SlowDisk(FixedTimeDevice):
    is_addressable: bool = False


@pytest.mark.parametrize("page_cache", [False, True])
def test_a_slow_disk_slows_file_reads_down_unless_the_page_cache_has_them(
    tmp_path: Path, page_cache: bool
) -> None:
    quick = compare_disk(tmp_path, SlowDisk("quick", 1.0), page_cache, SMALL)
    slow = compare_disk(tmp_path, SlowDisk("slow", 1e6), page_cache, SMALL)
    assert quick.truth > 0
    assert list(tmp_path.iterdir()) == []
    reads = int(slow.note.split()[0].replace(",", ""))
    if page_cache:
        assert reads == 0  # the page cache holds the files
    else:
        assert reads > 100
        assert slow.predicted >= reads * 1.0  # ms


def test_a_run_on_one_node_is_predicted_from_a_run_on_another() -> None:
    """Uses node0 as both nodes, since this computer may have no other."""
    if not Path("/sys/devices/system/node/node0").is_dir():
        pytest.skip("the kernel lists no NUMA nodes")
    files = [Path(devices.__file__).with_name(f"optane-100-x{dimms}.yaml") for dimms in (6, 1)]
    training = NodeTraining(rows=20_000, batch=2000, steps=3, repetitions=1)
    try:
        compared = compare_nodes("node0", "node0", files, training)
    except LabError as error:
        if "memkind" in str(error):
            pytest.skip(str(error))
        raise
    assert [each.name.split(",")[0] for each in compared] == [
        "PMEM_MEMKIND on node0 from node0"
    ] * 2
    assert all(each.truth > 0 and each.predicted > 0 for each in compared)


def test_a_node_on_which_training_fails_is_named(tmp_path: Path) -> None:
    training = NodeTraining(rows=100, batch=10, steps=1, repetitions=1)
    with pytest.raises(LabError, match=r"node0: no table could be trained there: .*gone\.yaml"):
        compare_nodes("node0", "node0", [tmp_path / "gone.yaml"] * 2, training)


def test_a_folder_in_memory_is_refused_as_a_disk() -> None:
    from rich.console import Console

    with pytest.raises(MeasuringError, match=r"/dev/shm: is memory; give a folder on a disk"):
        compare_this_computer(Path("/dev/shm"), SMALL, Console(quiet=True))


def test_the_command_stores_its_measurements_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_file, page = tmp_path / "measured.json", tmp_path / "page.md"
    monkeypatch.setattr(command, "_run_paced", lambda: ([NEAR], []))
    monkeypatch.setattr(
        this_computer, "compare_this_computer", lambda folder, *_: ([FAR], [str(folder)])
    )
    monkeypatch.setattr(command, "make_sections", lambda measured, **_: measured_sections(measured))
    arguments = ["model", "fidelity", "--paced", "--this-computer", str(tmp_path)]
    assert main([*arguments, "--measured", str(measured_file), "--write", str(page)]) == 0
    assert set(read_measured(measured_file)) == {"paced", "this-computer"}
    assert "| near | 100 | 105 |" in page.read_text()
    assert "| far | 100 | 150 |" in page.read_text()
    for missing in (tmp_path / "none" / "x.json", tmp_path / "x.json"):
        assert main(["model", "fidelity", "--measured", str(missing)]) == 2
