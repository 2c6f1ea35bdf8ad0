"""A sequence is the decoding state of one request, from its prompt to its last token.

It holds token ids only. It knows no text, HTTP, tensors or time zones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from service.engine.protocol.messages import Request
from service.engine.sequences.acceptance import Acceptance
from service.engine.sequences.constraint import Constraint
from service.engine.sequences.ngram import NgramProposer


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


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """The decoding state of one request. Owned by the scheduler; the runner reads it and
    changes nothing but `counts`, which follow its tokens, `num_read_tokens` and `state_sum`.

    token_ids   [ prompt ............ | output ....... ]
                  0 .. num_prompt-1     num_prompt .. len-1
    in KV cache [ 0 .. num_computed_tokens-1 ]
    this step   [ num_computed_tokens .. num_computed_tokens+n-1 ], samples iff that reaches the last known token

    For an encoder-decoder model the prompt is the encoder's input, filled up to whole blocks, and then the decoder's
    start. The first num_encoder_slots positions of the KV cache hold keys and values of the encoder's output for the
    decoder's layers. One step computes all of them. At later positions the decoder works like any other.
    """

    request: Request
    token_ids: list[int]
    num_prompt_tokens: int
    priority: int = 0
    """The request's; the one it had gained by waiting once it has run."""
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    window_table: list[int] = field(default_factory=list)
    """The window blocks of the same tokens, as far as the next token sees them; empty where no layer has any."""
    scheduled_at: float | None = None
    first_token_at: float | None = None
    num_preemptions: int = 0
    num_steps: int = 0
    own_seconds: float = 0.0
    """Its part of the seconds of its steps, their constants left out."""
    batch_size_sum: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    """Chained hashes of its first full blocks, as far as the block manager has needed them."""
    num_prompt_logprobs: int = 0
    """Prompt logprobs computed since the last admission: a preempted sequence computes them again ..."""
    num_prompt_logprobs_emitted: int = 0
    """... and gives out only those past this number."""
    num_expected_cached_tokens: int = 0
    """While it waits: its tokens that were cached when it joined the queue."""
    num_expected_offloaded_blocks: int = 0
    """... and the blocks of these tokens that lay in the offload file."""
    proposer: NgramProposer | None = None
    """The source of its drafts, made when it first decodes in a step in which drafts pay."""
    acceptance: Acceptance | None = None
    """Of the draft model's guesses for it."""
    constraint: Constraint | None = None
    """Where its output is in its grammar, if it has one."""
    num_read_tokens: int = 0
    """Its first tokens that the draft model is known to have read into the blocks of its table."""
    max_num_tokens: int = 0
    """The sequence ends at this number of tokens, prompt included."""
    num_encoder_slots: int = 0
    """Whole blocks of positions; 0 without an encoder."""
    num_counted_tokens: int = 0
    """Its first tokens, whose computation was counted or was found cached; computing them again is no useful work."""
    counts: TokenCounts | None = None
    """Of its tokens, as far as `counted` has been asked."""
    state_sum: array[float] | None = None
    """The sum of those of its hidden states that its pooling reads, computed since the last admission."""

    @classmethod
    def of(cls, request: Request, decoder_start: tuple[int, ...] = (), block_size: int = 1) -> Sequence:
        """Makes a sequence. `decoder_start` holds the first tokens of an encoder-decoder model's decoder; it is empty
        for a model without encoder."""
        prompt, slots = request.token_ids, 0
        if decoder_start:
            padding = -len(prompt) % block_size
            slots = len(prompt) + padding
            prompt = (*prompt, *[0] * padding, *decoder_start)
        emitted = request.emitted_prompt_logprobs
        counted = emitted and request.params.prompt_logprobs_start - 1 + emitted
        known = len(prompt) + len(request.emitted)
        return cls(
            request,
            [*prompt, *request.emitted],
            len(prompt),
            request.priority,
            num_prompt_logprobs_emitted=emitted,
            num_encoder_slots=slots,
            num_counted_tokens=known - 1 if request.emitted else counted,
        )

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens that are not in the KV cache yet; 1 for a sequence that decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def counted(self) -> TokenCounts:
        """The counts of all its tokens but an encoder's input: one step of work for each token since the last call."""
        if self.counts is None:
            self.counts = TokenCounts(self.num_encoder_slots, self.num_prompt_tokens)
        self.counts.follow(self.token_ids)
        return self.counts

    @property
    def decoder_token_ids(self) -> list[int]:
        """Tokens that the decoder reads and writes; all tokens without an encoder."""
        return self.token_ids[self.num_encoder_slots :] if self.num_encoder_slots else self.token_ids
