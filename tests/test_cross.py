"""One digest of every kernel's output on x86 and on ARM, which runs under emulation where the tools are at hand."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "src/excise/native"
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = pytest.mark.skipif(
    not (platform.machine() == "x86_64" and shutil.which("g++") and shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"needs g++ on x86-64, {CROSS} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)


def digests(compiler: str, folder: Path, sets: dict[str, list[str]], command: list[str]) -> dict[str, str]:
    """Build the kernels with one compiler, run them, and return the line of each instruction set."""
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-w", f"-I{NATIVE}"]
    defined = [f"-DEXCISE_BUILD_{name.upper()}" for name in sets]
    objects = []
    for name, extra in sets.items():
        objects.append(str(folder / f"{name}.o"))
        source = str(NATIVE / f"isa_{name}.cpp")
        subprocess.run([compiler, *flags, *extra, "-c", source, "-o", objects[-1]], check=True)
    sources = [str(NATIVE / "engine.cpp"), str(NATIVE / "stairs.cpp"), str(ROOT / "tests/native/digests.cpp")]
    program = str(folder / "digests")
    subprocess.run([compiler, "-static", *flags, *defined, *sources, *objects, "-o", program], check=True)
    done = subprocess.run([*command, program], check=True, capture_output=True, text=True)
    return dict(line.split(":", 1) for line in done.stdout.splitlines())


def test_arm_and_x86_give_the_same_bytes(tmp_path: Path) -> None:
    avx512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]
    (tmp_path / "x86").mkdir()
    (tmp_path / "arm").mkdir()
    x86 = {"avx512vnni": [*avx512, "-mavx512vnni"], "avx512": avx512, "avx2": ["-mavx2", "-mfma"], "plain": []}
    here = digests("g++", tmp_path / "x86", x86, [])
    there = digests(CROSS, tmp_path / "arm", {"neon": [], "plain": []}, [EMULATOR])
    assert {"neon", "plain"} <= set(there)
    assert len({*here.values(), *there.values()}) == 1, {"x86": here, "ARM": there}
