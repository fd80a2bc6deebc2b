"""Builds the core's native tests, plain or under a sanitizer, and runs them.

Plain programs link the library that the Python module was made of. Under a sanitizer Clang compiles
them, so that it checks the locks' annotations, too.
"""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SANITIZERS = ("thread", "address,undefined")

# Programs that start threads, or whose part of the core does.
MULTI_THREADED = [
    "admission_test",
    "device_steps_test",
    "durable_steps_test",
    "each_key_once_test",
    "emulated_device_test",
    "epochs_test",
    "eviction_pool_test",
    "hbm_tier_test",
    "index_test",
    "leveldb_tier_test",
    "lost_device_test",
    "medium_test",
    "path_lock_test",
    "prepared_updates_test",
    "process_local_test",
    "restore_test",
    "right_to_move_test",
    "saves_test",
    "shared_pages_test",
    "table_faults_test",
]
# Programs that use one thread from end to end: the thread sanitizer could find no race in them.
SINGLE_THREADED = [
    "coldest_rows_test",
    "crc32c_test",
    "cuda_device_test",
    "gradient_batch_test",
    "interleavings_test",  # runs one of its threads at a time
    "kernels_test",
    "key_partition_test",
    "optimizers_test",
    "pacing_test",
    "phase_test",
    "prefetched_rows_test",
    "inclusive_cache_test",
    "slot_allocator_test",
]
# Programs that also run without a sanitizer, because their bits depend on the compiler or because
# they do more then. The tests in Python run the other parts as compiled for users.
ALSO_UNSANITIZED = [
    "crc32c_test",
    "eviction_pool_test",
    "gradient_batch_test",
    "interleavings_test",
    "kernels_test",
    "optimizers_test",
    "shared_pages_test",
    "table_faults_test",
]
PROGRAMS_OF = {
    "": [*ALSO_UNSANITIZED, "log_test", "ptx_test"],
    "thread": [*MULTI_THREADED, "log_test", "table_stress"],
    "address,undefined": ["native_programs"],
}


def _in_memory() -> Path:
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    return memory if has_room else Path(tempfile.gettempdir())


# Programs sync files thousands of times, which takes minutes on a disk.
FILES = _in_memory()
ON_DISK = Path(tempfile.gettempdir())

# By default the thread sanitizer ends a child that starts threads if its parent has threads, and
# the parent keeps those that help with large batches. (It doesn't watch such a child.) Once in
# twenty runs it reports a leaked thread; a thread that really is left unjoined ends the program
# anyway, by std::thread. It sleeps for a second before a program ends, for threads that run on;
# none does here.
THREAD_SANITIZER_OPTIONS = "die_after_fork=0 report_thread_leaks=0 atexit_sleep_ms=0"

# malloc gives memory back to the system late: programs make and free buffers of megabytes by the
# thousand, and new pages would cost more than the work on them. Sanitizers don't read these.
MEMORY_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1073741824"}


def build(program: str, sanitizer: str = "") -> Path:
    """Returns the path of a program. Builds all programs of the sanitizer that changed."""
    built = compile_all(sanitizer)
    assert built.returncode == 0, built.stdout[-8000:] + built.stderr[-2000:]
    path = _folder(sanitizer) / program
    assert path.exists(), f"{program} isn't among PROGRAMS_OF[{sanitizer!r}]"
    return path


@functools.cache
def compile_all(sanitizer: str = "") -> subprocess.CompletedProcess[str]:
    """Compiles the programs. An error in Clang's analysis of locks is a compilation error."""
    folder = _folder(sanitizer)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        _configure(folder, sanitizer)
        processors = str(len(os.sched_getaffinity(0)))
        command = [_tool("cmake"), "--build", str(folder), "--parallel", processors, "--target"]
        return subprocess.run([*command, *PROGRAMS_OF[sanitizer]], capture_output=True, text=True)


def _configure(folder: Path, sanitizer: str) -> None:
    options = ["-DCMAKE_BUILD_TYPE=Release"]
    if sanitizer:
        clang = shutil.which("clang++")
        assert clang, "sanitizers and locks are checked by clang++: install clang libclang-rt-dev"
        options += [f"-DEMBSTORE_SANITIZE={sanitizer}", f"-DCMAKE_CXX_COMPILER={clang}"]
    else:
        options += [f"-DPython_EXECUTABLE={sys.executable}"]
    ninja = f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"
    command = [_tool("cmake"), "-G", "Ninja", ninja, "-S", "engine", "-B", str(folder), *options]
    subprocess.run(command, check=True, cwd=ROOT)


def run(program: Path, *arguments: str, timeout_s: float, files: Path = FILES) -> str:
    """Returns what the program prints. Raises AssertionError with its last output if it fails.

    files: the folder for the program's files. Files of processes that it kills are removed, too.
    """
    with tempfile.TemporaryDirectory(dir=files, prefix="embstore-") as folder:
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={
                **os.environ,
                **MEMORY_OPTIONS,
                "TMPDIR": folder,
                "TSAN_OPTIONS": THREAD_SANITIZER_OPTIONS,
            },
        )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


def names_of_tests(program: Path, left_out: Collection[str]) -> list[str]:
    """Returns the names of the program's tests without `left_out`, all of which it must have."""
    names = run(program, "--list", timeout_s=60).split()
    assert set(names) >= set(left_out), f"{program.name} has no {set(left_out) - set(names)}"
    return [name for name in names if name not in left_out]


def _folder(sanitizer: str) -> Path:
    if sanitizer:
        return ROOT / "build" / "sanitized" / sanitizer.replace(",", "-")
    # The folder in which `pip install -e engine` compiled the module.
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    system = sysconfig.get_platform().replace("-", "_")
    return ROOT / "build" / f"{python}-{python}-{system}"


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    tool = str(beside) if beside.exists() else shutil.which(name)
    assert tool, f"the native tests need {name}: pip install {name}"
    return tool
