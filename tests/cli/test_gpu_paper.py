"""Programs for GPUs that are not there: what is counted in them, and that their kernels do not rise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu_paper
import pytest

PROGRAM = """HloModule step

%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  %product = f32[4]{0} fusion(%t), kind=kCustom, backend_config={"kind":"__triton_gemm"}
  %states = f32[4]{0} fusion(%product), kind=kLoop, calls=%work
  ROOT %next = (s32[], f32[4]{0}) tuple(%t, %states)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %start = f32[4]{0} copy(%x)
  %loop = (s32[], f32[4]{0}) while(%start), body=%body, backend_config={"known_trip_count":{"n":"60"}}
  ROOT %last = f32[4]{0} get-tuple-element(%loop), index=1
}
"""


def test_kernels_are_counted_with_the_trips_around_them() -> None:
    counts = gpu_paper.counted(PROGRAM)
    assert counts.num_kernels == 1 + 60 * 2
    assert counts.loops == [(60, 2.0)]


@pytest.mark.parametrize(("kernels", "code"), [(1131, 0), (1130, 0), (1132, 1)])
def test_the_check_fails_when_kernels_rise(
    kernels: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    noted = tmp_path / "noted.json"
    noted.write_text(json.dumps({"kernels": 1131, "versions": gpu_paper.versions()}))
    monkeypatch.setattr(gpu_paper, "NOTED", noted)
    monkeypatch.setattr(gpu_paper, "WHEELS", tmp_path)
    monkeypatch.setattr(gpu_paper, "cell", lambda options: {"kernels": kernels})
    assert gpu_paper.check() == code
    assert ("; got 1 more." in capsys.readouterr().out) == bool(code)


@pytest.mark.process
@pytest.mark.skipif(
    not gpu_paper.WHEELS.is_dir(), reason="needs .gpu-paper/: scripts/gpu_day paper prepare; done every night"
)
def test_the_kernels_of_40_aligned_models_have_not_risen() -> None:
    # In a process of its own: this one may have Keras on another backend.
    subprocess.run([sys.executable, gpu_paper.__file__, "check"], check=True)
