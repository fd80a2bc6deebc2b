"""The GPU's kernels, compiled by NVRTC, which needs no GPU."""

import importlib.util
from pathlib import Path

import pytest
from native_programs import build, run


def nvrtc_library() -> Path | None:
    """Returns NVRTC's library from the package of the extra `embstore[gpu]`, or None."""
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    places = found.submodule_search_locations if found else None
    libraries = [
        library for place in places or () for library in Path(place, "lib").glob("libnvrtc.so.*")
    ]
    return libraries[0] if libraries else None


@pytest.mark.sanitizer
def test_kernels_compile_for_three_generations_without_fused_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = nvrtc_library()
    if library is None:
        pytest.skip("NVRTC isn't installed: pip install 'nvidia-cuda-nvrtc-cu12>=12.8'")
    monkeypatch.setenv("EMBSTORE_NVRTC", str(library))
    assert "held: " in run(build("ptx_test"), timeout_s=300)
