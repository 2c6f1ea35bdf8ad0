"""The recipe of the demo model: corpus, tokenizer, training and held-out dialogues. It makes the weights that
`models/demo` ships, from a checkout; no installed package has it."""
