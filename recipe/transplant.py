"""A run may begin from the weights of an earlier model (`--init`), also where its tokenizer has other tokens."""

from pathlib import Path

from tokenizers import Tokenizer, decoders
from torch import Tensor

from recipe.checkpoint import load_tensors
from recipe.network import Llama

EMBEDDING = "model.embed_tokens.weight"


def transplant(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Set the parameters of `model` to those of the checkpoint in `folder`, whose layers have the same sizes.

    The embedding's row of a token is the row of the same token there. A token that is new has the mean of the rows of
    the tokens that the earlier tokenizer writes the new token's text with.
    """
    state = load_tensors(folder)
    earlier = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = model.model.embed_tokens.weight.detach()
    state[EMBEDDING] = carried_rows(state[EMBEDDING].float(), earlier, rows, tokenizer)
    model.load_state_dict(state)


def carried_rows(theirs: Tensor, earlier: Tokenizer, mine: Tensor, tokenizer: Tokenizer) -> Tensor:
    """The rows `mine` [ids, hidden size], where those of the tokens of `tokenizer` are made of `theirs`, which are the
    rows of the tokenizer `earlier`."""
    known, alphabet, made = earlier.get_vocab(), decoders.ByteLevel(), mine.clone()
    for token, token_id in tokenizer.get_vocab().items():
        if token in known:
            pieces = [known[token]]
        else:
            pieces = earlier.encode(alphabet.decode([token]), add_special_tokens=False).ids
        made[token_id] = theirs[pieces].mean(0)
    return made
