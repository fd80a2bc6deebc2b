"""`pmemlab model measure` and `devices`: device files that load, and plausible figures."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from full_disk import fill_disk

from embstore.bench._yardsticks import FileYardstick, MemoryOperation, MemoryYardstick
from embstore.devices import Access
from embstore.errors import EmbStoreError, MissingDeviceError
from pmemlab import mounts
from pmemlab.cli import main
from pmemlab.errors import MeasuringError
from pmemlab.machines.guest import memory_facts
from pmemlab.model.devices import load_device
from pmemlab.model.devices.measuring import command, files
from pmemlab.model.devices.measuring import target as targets
from pmemlab.model.devices.measuring.memory import thread_counts
from pmemlab.model.devices.measuring.target import FolderTarget, NodeTarget, find_target

SHM = Path("/dev/shm")
MEASURE = ("--size", "32M", "--seconds", "0.004", "--last-level-cache", "32M")
DISK = ("--size", "80M", "--seconds", "0.002")


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Measures, and returns the output."""
    assert main(["model", "measure", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the error of a measurement that is refused."""
    assert main(["model", "measure", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


# --- A measurement writes a device file like the lab's own.


@pytest.fixture(scope="module")
def node_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a node's measurement, which takes a second. --force overwrote another file."""
    output = tmp_path_factory.mktemp("node") / "mine.yaml"
    output.write_text("precious")
    assert main(["model", "measure", "node0", "-o", str(output), "--force", *MEASURE]) == 0
    return output


def test_a_node_s_file_can_be_loaded_and_names_its_source(node_file: Path) -> None:
    device = load_device(node_file)
    assert (device.name, device.kind, device.cpu_cache_bytes) == ("mine", "memory", 32 << 20)
    (source,) = device.sources.values()
    assert source.title == "measured here"
    assert source.measured is not None
    assert os.uname().release in source.what
    assert targets.cpu_name() in source.what
    for access in (Access.LOAD, Access.UPDATE, Access.STORE, Access.STORE_STREAMED):
        assert 0 < device.time_ns(access, 256, 1) < 1e6
    # Beyond the measured numbers of threads, the bandwidth stays that of the most threads.
    most = device.bandwidth_mb_per_s("load", "random", 256, os.cpu_count() or 1)
    assert device.bandwidth_mb_per_s("load", "random", 256, 1000) == most


def test_a_measurement_of_memory_that_fits_the_caches_says_so(node_file: Path) -> None:
    assert any("holds up to 100%" in note for note in load_device(node_file).notes)


@pytest.mark.skipif(not os.access(SHM, os.W_OK), reason="no /dev/shm to measure")
def test_a_folder_in_memory_is_measured_as_memory_and_not_called_persistent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "shm.yaml"
    printed = measured(capsys, str(SHM), "-o", str(output), "--name", "my-pmem", *MEASURE)
    assert f"written: {output}" in printed.replace("\n", "")
    device = load_device(output)
    assert (device.name, device.kind) == ("my-pmem", "memory")
    assert any("no dax mount" in note for note in device.notes)


@pytest.mark.parametrize("options", [(), ("--page-cache",)])
def test_a_folder_s_disk_is_measured_by_reads_and_appends(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(files, "_IN_FLIGHT", (1, 4))  # each thread's sync takes long
    if find_target(str(tmp_path)).is_memory:
        pytest.skip("the temporary folder is in memory")
    output = tmp_path / "disk.yaml"
    printed = refused_without_direct_io(capsys, str(tmp_path), "-o", str(output), *DISK, *options)
    if printed is not None:
        pytest.skip(printed)
    device = load_device(output)
    assert not device.is_addressable
    assert device.time_ns(Access.FILE_READ, 4096, 1) > 0
    assert device.time_ns(Access.FILE_WRITE, 1 << 20, 1) > 0
    (source,) = device.sources.values()
    assert ("through the page cache" in source.what) == bool(options)
    assert list(tmp_path.iterdir()) == [output]  # the test files are removed


def refused_without_direct_io(capsys: pytest.CaptureFixture[str], *arguments: str) -> str | None:
    """Measures. Returns the error if the temporary folder's file system has no direct I/O."""
    status = main(["model", "measure", *arguments])
    error = capsys.readouterr().err
    if status == 2 and "direct I/O" in error:
        return error
    assert status == 0, error
    return None


# --- Arguments that are refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "-o", "a.yaml"], "nowhere: is neither a folder nor a NUMA node; there are"),
        (["node4711", "-o", "a.yaml"], "node4711: is no NUMA node here; there are node0"),
        (["node0", "-o", "a.txt"], "-o a.txt: must end with .yaml"),
        (["node0", "-o", "no/where/a.yaml"], "-o no/where/a.yaml: there is no folder"),
        (["node0", "-o", "a.yaml", "--size", "many"], "--size: 'many' is no size"),
        (["node0", "-o", "a.yaml", "--media-line", "wide"], "--media-line: 'wide' is no size"),
        (["node0", "-o", "a.yaml", "--media-line", "3"], "--media-line 3: must be a power of two"),
        ([".", "-o", "a.yaml", "--media-line", "2T"], "--media-line 2T: must be a power of two"),
        (["node0", "-o", "a.yaml", "--last-level-cache", "1"], "cache 1: must be 64 bytes or more"),
        (["node0", "-o", "a.yaml", "--last-level-cache", "900T"], "900T: .* less than the .*node0"),
        ([".", "-o", "a.yaml", "--last-level-cache", "900T"], "is a disk; leave it out|less than"),
        (["node0", "-o", "a.yaml", "--name", " "], "--name: must be text"),
        (["node0", "-o", "a.yaml", "--title", ""], "--title: must be text"),
        (["node0", "-o", "a.yaml", "--title", "\udcff"], "--title: must be text"),
        (["node0", "-o", "a.yaml", "--size", "900T"], "node0: has .* MiB free of the"),
        (["node0", "-o", "a.yaml", "--size", "4K"], r"--size 4K: must be \d+K or more"),
        ([".", "-o", "a.yaml", "--size", "1M"], r"--size 1M: must be \d+K or more"),
        (["node0", "-o", "a.yaml", "--seconds", "0"], "--seconds 0: must be 0.001 or more"),
        (["node0", "-o", "a.yaml", "--seconds", "1e-300"], "--seconds 1e-300: must be 0.001"),
        (["", "-o", "a.yaml"], "'': is neither a folder nor a NUMA node"),
        (["node0", "-o", "a.yaml", "--page-cache"], "--page-cache: node0 is memory and has none"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it was measured"))
    assert re.search(message, refused(capsys, *arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_minimum_size_in_the_error_is_sufficient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("-o", str(tmp_path / "disk.yaml"), "--page-cache", "--seconds", "0.001")
    if find_target(str(tmp_path)).is_memory:
        pytest.skip("the temporary folder is in memory")
    minimum = re.search(
        r"must be (\d+K) or more", refused(capsys, str(tmp_path), *arguments, "--size", "32M")
    )
    assert minimum
    measured(capsys, str(tmp_path), *arguments, "--size", minimum[1])


def test_an_existing_file_is_overwritten_only_with_force(
    tmp_path: Path, node_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mine.yaml"
    output.write_text("precious")
    assert "is there already" in refused(capsys, "node0", "-o", str(output), *MEASURE)
    assert output.read_text() == "precious"
    assert load_device(node_file).name == "mine"


def test_a_full_disk_keeps_the_file_that_was_to_be_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "mine.yaml"
    output.write_text("precious")
    fill_disk(monkeypatch)
    assert "No space left" in refused(capsys, "node0", "-o", str(output), "--force", *MEASURE)
    assert output.read_text() == "precious"


def nodes(folder: Path, *described: tuple[str, str, str, int]) -> None:
    """Writes NUMA nodes, as sysfs shows them: (name, CPUs, distances, megabytes) of each."""
    for name, cpus, distance, megabytes in described:
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(f"{cpus}\n")
        (folder / name / "distance").write_text(f"{distance}\n")
        (folder / name / "meminfo").write_text(
            f"Node 0 MemTotal:  {megabytes * 1024} kB\nNode 0 MemFree:  {megabytes * 512} kB\n"
        )


def test_a_node_without_cpus_is_measured_from_the_nearest_node_with_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    far = f"{others[0]}" if others else ""
    nodes(
        tmp_path,
        ("node0", far, "10 20 24", 1000),
        ("node1", f"{first}", "20 10 14", 1000),
        ("node2", "", "24 14 10", 4000),
        ("node3", "", "24 14 10", 0),
    )
    for module in (targets, memory_facts):
        monkeypatch.setattr(module, "_NODES", tmp_path)
    (tmp_path / "node2" / "distance").write_text("24 14 10 30\n")
    found = find_target("node2")
    assert isinstance(found, NodeTarget)
    assert found.bound
    assert found.cpus == {first}
    assert (found.total_bytes, found.free_bytes) == (4000 << 20, 2000 << 20)
    with pytest.raises(MeasuringError, match="node3: has no memory; give another of node0, node1"):
        find_target("node3")


def test_a_dax_mount_is_memory_and_the_innermost_mount_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "pmem 0"
    inner.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"23 22 259:0 / {tmp_path}/pmem\\0400 rw shared:2 - ext4 /dev/pmem0 rw,dax=always\n"
    )
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    outer = find_target(str(tmp_path))
    assert isinstance(outer, FolderTarget)
    assert (outer.is_memory, outer.file_system) == (False, "ext4")
    found = find_target(str(inner))
    assert isinstance(found, FolderTarget)
    assert found.is_memory


@pytest.mark.parametrize("file_system", ["tmpfs", "ramfs", "devtmpfs"])
def test_a_folder_whose_files_are_in_memory_is_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 0:20 / / rw shared:1 - {file_system} none rw\n")
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    found = find_target(str(tmp_path))
    assert isinstance(found, FolderTarget)
    assert found.is_memory


def test_thread_counts_are_powers_of_two_up_to_the_number_of_cpus() -> None:
    assert [thread_counts(cpus) for cpus in (1, 2, 3, 8, 12)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4, 8),
        (1, 2, 4, 8, 12),
    ]


# --- The yardsticks.


@pytest.fixture(scope="module")
def memory() -> MemoryYardstick:
    return MemoryYardstick(64 << 20, node=-1)


@pytest.mark.parametrize("operation", list(MemoryOperation))
@pytest.mark.parametrize("random", [True, False])
def test_a_measured_memory_bandwidth_is_plausible(
    memory: MemoryYardstick, operation: MemoryOperation, random: bool
) -> None:
    try:
        rate = memory.mb_per_s(operation, random, 4096, 1, 0.02)
    except MissingDeviceError:
        assert operation is MemoryOperation.STORE_FLUSHED
        pytest.skip("this CPU has no clwb")
    assert 50 < rate < 1e6


def test_dependent_loads_at_random_take_longer_than_in_sequence(memory: MemoryYardstick) -> None:
    at_random, in_sequence = (memory.latency_ns(random, 0.02) for random in (True, False))
    assert at_random > 2 * in_sequence > 0


@pytest.mark.parametrize(("size", "threads"), [(0, 1), (100, 1), (64, 0), (64 << 20, 2)])
def test_impossible_accesses_are_refused(memory: MemoryYardstick, size: int, threads: int) -> None:
    with pytest.raises(EmbStoreError, match=r"^(access_bytes|threads): "):
        memory.mb_per_s(MemoryOperation.LOAD, True, size, threads, 0.01)


def test_memory_of_a_missing_node_is_an_error() -> None:
    with pytest.raises(MissingDeviceError, match="can't take memory of NUMA node 1000"):
        MemoryYardstick(2 << 20, node=1000)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    for make in (
        lambda: MemoryYardstick(2 << 20, directory=str(tmp_path / "none")),
        lambda: FileYardstick(2 << 20, str(tmp_path / "none"), False),
    ):
        with pytest.raises(EmbStoreError, match="can't be made: No such file"):
            make()


@pytest.mark.parametrize(("size", "threads"), [(0, 1), (100, 1), (512, 0), (4 << 20, 1)])
def test_impossible_requests_are_refused(tmp_path: Path, size: int, threads: int) -> None:
    disk = FileYardstick(2 << 20, str(tmp_path), False)
    with pytest.raises(EmbStoreError, match=r"^(request_bytes|threads): "):
        disk.mb_per_s(False, True, size, threads, 0.01)


@pytest.mark.long
def test_many_threads_on_few_cpus_do_not_exceed_the_memory_s_bandwidth(tmp_path: Path) -> None:
    """Rates over each thread's own time would exceed it, as a thread that starts late ends soon."""
    disk = FileYardstick(4 << 20, str(tmp_path), False)
    many, one = zip(  # in turn, so that both see the same load of the computer
        *(
            [disk.mb_per_s(False, True, 65536, threads, 0.003) for threads in (64, 1)]
            for _ in range(20)
        ),
        strict=True,
    )
    assert max(many) < 3 * max(one) * (os.cpu_count() or 1)


# --- Printed tables.


def test_all_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "devices"]) == 0
    printed = capsys.readouterr().out
    for name in ("optane-100-x6", "cxl-asic", "nvme-p4510", "optane-100-x6-memory-mode"):
        assert name in printed
    assert "public" in printed  # in the line of Optane 200


def test_times_below_a_nanosecond_are_not_printed_as_zero(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A GPU has such times, since it has many accesses in flight."""
    assert main(["model", "devices"]) == 0
    printed = capsys.readouterr().out.splitlines()
    gpus = [line.split()[1:5] for line in printed if line.split()[1:2] == ["gpu"]]
    assert len(gpus) == 3
    assert all(float(read) < float(write) < 10 for _, _, read, write in gpus)
    assert all(float(read) > 0 for _, _, read, _ in gpus)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("optane-100-x6", ("random load, MB/s", "305 ns", "NVSL/OptaneStudy", "note:")),
        ("cxl-asic", ("latency under load", "EuroSys")),
        ("optane-100-x6-memory-mode", ("dirty miss", "direct-mapped")),
        ("sata-s4510", ("in flight", "36,000")),
    ],
)
def test_a_device_is_shown_with_its_curves_and_sources(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "devices", name]) == 0
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed


def test_an_unknown_device_is_an_error_of_the_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "devices", "tape"]) == 2
    assert "tape: no device of this name; there are a100-80, cxl-asic" in capsys.readouterr().err


def test_a_measured_file_has_figures_of_four_digits(node_file: Path) -> None:
    document = yaml.safe_load(node_file.read_text())
    values = [v for c in document["bandwidth"] for p in c["points"] for v in p["values"]]
    assert len(values) > 40
    assert all(value == float(f"{value:.4g}") for value in values)
