"""GPUs that the installed TensorFlow has no code for: asked of the driver before TensorFlow starts.

TensorFlow's releases hold no code for GPUs of compute capability 12 (RTX 50), and the process is aborted
when the first program is compiled for one (tensorflow issues 89272, 101746, 111958). JAX computes on
such a GPU if it is installed with CUDA; otherwise the CPU does. A release that lists code for them is used.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SMI: Final = "nvidia-smi"
SMI_LIMIT_S: Final = 20  # of nvidia-smi, which hangs when the driver does, in seconds
FIRST_MISSING: Final = 12
"""Compute capability, its whole number, from which on TensorFlow needs code of its own."""
_FIELDS: Final = ("name", "compute_cap", "uuid")


def replacing_variables(device: str) -> dict[str, str]:
    """Return environment variables with which something else computes than TensorFlow on such a GPU.

    They are empty where there is no such GPU, `device` is "cpu", or another backend is chosen already.
    """
    if device == "cpu" or not gpus_without_code():
        return {}
    return {"KERAS_BACKEND": "jax"} if _has_jax_for_gpus() else {"CUDA_VISIBLE_DEVICES": "-1"}


def replacement_notice(device: str) -> str | None:
    """Return the sentence that says what computes in TensorFlow's place, and why; None if nothing does."""
    variables = replacing_variables(device)
    if not variables:
        return None
    gpus = " and ".join(gpus_without_code())
    what = "JAX computes on it" if "KERAS_BACKEND" in variables else "the CPU computes; install jax[cuda12]"
    return f"The installed TensorFlow has no code for {gpus}, and would be aborted there: {what}."


def gpus_without_code() -> tuple[str, ...]:
    """Return name and compute capability of the GPUs that TensorFlow would use but has no code for."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_tensorflow = os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
    if not is_tensorflow or visible in {"", "-1"}:
        return ()
    rows = ask_smi(_FIELDS)
    if isinstance(rows, str):
        return ()
    capabilities = _capabilities_of_tensorflow()
    if not capabilities or max(capabilities) >= FIRST_MISSING:
        return ()
    names = [name.strip() for name in (visible or "").split(",")]
    # CUDA numbers GPUs in another order than the driver: a number says nothing about which one is meant.
    is_named = all(name.startswith("GPU-") for name in names)
    return tuple(
        f"{name} (compute capability {capability})"
        for name, capability, uuid in rows
        if _whole(capability) >= FIRST_MISSING and (not is_named or uuid.startswith(tuple(names)))
    )


def ask_smi(fields: Sequence[str]) -> list[list[str]] | str:
    """Ask nvidia-smi for fields of every GPU: returns a row for each, or why there is none.

    The driver is asked once in a process.
    """
    return _asked(shutil.which(SMI), tuple(fields))


@cache
def _asked(program: str | None, fields: tuple[str, ...]) -> list[list[str]] | str:
    if program is None:
        return f"{SMI} is not on the PATH"
    query = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        completed = subprocess.run(  # noqa: S603 - the driver's own program
            [program, *query], capture_output=True, text=True, timeout=SMI_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{SMI}: {error}"
    rows = [[part.strip() for part in line.split(",")] for line in completed.stdout.splitlines() if line]
    if rows and not completed.returncode and all(len(row) == len(fields) for row in rows):
        return rows
    output = (completed.stdout + completed.stderr).strip().splitlines() or ["nothing"]
    return f"{SMI} printed: {output[0]}"


def _whole(capability: str) -> int:
    """Return the whole number of a compute capability such as "12.0"; 0 for anything else."""
    whole = capability.partition(".")[0]
    return int(whole) if whole.isdecimal() else 0


def _capabilities_of_tensorflow() -> list[int]:
    """Return the whole numbers of the compute capabilities that TensorFlow's build lists, without a start.

    The list is empty where TensorFlow is not installed, or is built without CUDA.
    """
    spec = find_spec("tensorflow")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return []
    file = Path(folders[0]) / "python" / "platform" / "build_info.py"
    try:
        content = file.read_text("utf-8")
    except OSError:
        return []
    return [int(number) // 10 for number in re.findall(r"'(?:sm|compute)_(\d+)", content)]


def _has_jax_for_gpus() -> bool:
    """Return whether JAX is installed with its plug-in for CUDA."""
    names = (distribution.name or "" for distribution in importlib.metadata.distributions())
    return find_spec("jax") is not None and any(name.startswith("jax-cuda") for name in names)
