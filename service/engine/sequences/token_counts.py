"""Token counts say how often each token occurs in a sequence, kept up to date token by token. No penalties here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice


class TokenCounts:
    """The distinct tokens of a prompt and its output, in order of first sight, with their counts in the output: 0 for
    one of the prompt alone. `token_ids` and `output_counts` are parallel, int32; a reader must not keep views of them,
    for they grow."""

    def __init__(self, first: int, num_prompt_tokens: int) -> None:
        """Of a sequence whose tokens count from the index `first` on, and as output from `num_prompt_tokens` on."""
        self.token_ids = array("i")
        self.output_counts = array("i")
        self._num_prompt_tokens = num_prompt_tokens
        self._num_seen = first
        self._places: dict[int, int] = {}

    def follow(self, token_ids: list[int]) -> None:
        """Takes in what the sequence has got since the last call: `token_ids` are all of its tokens."""
        prompt = range(self._num_seen, min(self._num_prompt_tokens, len(token_ids)))
        self._take_in(islice(token_ids, prompt.start, prompt.stop), 0)
        self._take_in(islice(token_ids, max(self._num_seen, self._num_prompt_tokens), None), 1)
        self._num_seen = len(token_ids)

    def behind(self, drafts: Iterable[int]) -> TokenCounts:
        """Counts as if `drafts` were the sequence's next output; these stay as they are."""
        counts = TokenCounts(self._num_seen, self._num_prompt_tokens)
        counts.token_ids, counts.output_counts = self.token_ids[:], self.output_counts[:]
        counts._places = self._places.copy()
        counts._take_in(drafts, 1)
        return counts

    def _take_in(self, token_ids: Iterable[int], output: int) -> None:
        for token_id in token_ids:
            place = self._places.setdefault(token_id, len(self.token_ids))
            if place == len(self.token_ids):
                self.token_ids.append(token_id)
                self.output_counts.append(0)
            self.output_counts[place] += output
