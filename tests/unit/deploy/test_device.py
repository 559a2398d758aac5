"""What this machine has is read from the kernel, and decides the CPU's defaults."""

from pathlib import Path

import psutil
import pytest

from deploy.device import available_memory, cores, cpu_engine, cpu_environment, gpu_count


def test_gpus_are_counted_as_the_driver_lists_them(tmp_path: Path) -> None:
    assert gpu_count(tmp_path / "absent") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert gpu_count(tmp_path) == 2


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx2 fma", "float32"), ("avx512f avx512_bf16", "bfloat16"), ("avx512f amx_bf16 amx_tile", "bfloat16")],
)
def test_the_number_format_is_one_that_the_processor_computes_in(tmp_path: Path, flags: str, dtype: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: {flags}\n")
    assert cpu_engine(cpuinfo)["dtype"] == dtype


def test_without_a_list_of_flags_the_safe_format_is_taken(tmp_path: Path) -> None:
    assert cpu_engine(tmp_path / "absent")["dtype"] == "float32"


def test_two_engines_share_the_cores() -> None:
    assert cpu_environment()["OMP_NUM_THREADS"] == str(max(1, cores() // 2))


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_memory(tmp_path) == 2_000_000


@pytest.mark.parametrize("limit", ["max\n", None])
def test_without_a_limit_the_memory_of_the_machine_counts(tmp_path: Path, limit: str | None) -> None:
    if limit:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("1\n")
    assert 0 < available_memory(tmp_path) <= psutil.virtual_memory().total
