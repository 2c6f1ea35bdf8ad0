"""This command runs llama.cpp's converter for an unknown tokenizer: `to_gguf MODEL_DIR --outfile F ...`.

The converter names the pre-tokenizer by a hash of its result on a test text, and refuses unknown hashes. Prompts here
are token ids, so the plain byte-level pre-tokenizer is enough. The command needs llama.cpp's source on the path.
"""

from __future__ import annotations

from conversion.base import TextModel  # type: ignore[import-not-found]
from convert_hf_to_gguf import main  # type: ignore[import-not-found]

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"

if __name__ == "__main__":
    main()
