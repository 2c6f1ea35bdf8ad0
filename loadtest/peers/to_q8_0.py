"""This command quantizes a GGUF file to Q8_0, whatever its blocks are: `to_q8_0 FILE TARGET`."""

from __future__ import annotations

import sys
from ctypes import byref

import llama_cpp  # type: ignore[import-not-found]


def main(source: str, target: str) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True
    if failed := llama_cpp.llama_model_quantize(source.encode(), target.encode(), byref(options)):
        raise SystemExit(f"llama_model_quantize returned {failed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
