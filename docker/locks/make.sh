#!/usr/bin/env bash
# Writes the lock files of this folder: the versions of requirements.txt, with the hashes of their published files.
#
#   docker/locks/make.sh [FOLDER]
#
#   api.lock          what the API process needs: no torch, and nothing that only an engine's packages ask for
#   engine.lock       the rest, without torch itself
#   torch-cuda.lock   torch as the index publishes it for Linux, and NVIDIA's libraries of the versions that it asks for
#   tools.lock        what builds the image and is not in it
#
# torch-cpu.lock is written by hand: torch's builds for processors are on an index of their own. It has the hash of the
# file with which this project was built and measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-docker/locks}
uv=${UV:-uv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the engine process alone imports, and the process that tries grammars for it. numpy is not among it: BentoML's
# server imports it.
engine='accelerate|gguf|llguidance|mpmath|networkx|regex|safetensors|sympy|transformers'

locked() { # FILE…: its lines with all hashes of each version, and nothing that the lines do not name
    "$uv" pip compile --quiet --no-config --no-deps --no-header --no-annotate --generate-hashes --python-version 3.11 \
        --universal "$@"
}

pinned() { grep -vE '^#' requirements.txt | grep "$@"; }

pinned -vE "^(torch|setuptools|$engine)==" >"$work/api.in"
pinned -E "^($engine)==" >"$work/engine.in"
printf '%s\n' cyclonedx-bom "cyclonedx-python-lib[json-validation]" setuptools==84.2.1 >"$work/tools.all"
pinned -E '^torch==' >"$work/torch.all"

closure() { # FILE CONSTRAINTS: every package that the file's lines ask for, pinned
    "$uv" pip compile --quiet --no-config --no-header --no-annotate --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --constraints "$2" "$1"
}
closure "$work/tools.all" constraints.txt >"$work/tools.in"
closure "$work/torch.all" constraints.txt | grep -E '^(torch|triton|nvidia-|cuda-)' >"$work/torch-cuda.in"

for name in api engine tools torch-cuda; do
    locked "$work/$name.in" >"$folder/$name.lock"
    echo "$name.lock: $(grep -c '==' "$folder/$name.lock") packages"
done
