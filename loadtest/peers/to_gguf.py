"""llama.cpp's own converter, for a checkpoint whose tokenizer it does not know: `to_gguf MODEL_DIR --outfile F ...`.

It names the pre-tokenizer by a hash of what a tokenizer does with a test text, and refuses hashes that it has not seen.
Prompts here are token ids, so the plain byte-level one does. Needs llama.cpp's source on the path.
"""

from __future__ import annotations

from conversion.base import TextModel  # type: ignore[import-not-found]
from convert_hf_to_gguf import main  # type: ignore[import-not-found]

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"

if __name__ == "__main__":
    main()
