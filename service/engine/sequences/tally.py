"""The tally counts the work of one step by phase: tokens, query-key pairs, positions. It knows no model and no clock.

A scheduled item is decode if it computes one known token behind the prompt, with or without drafts. Everything else is
prefill: prompts, and what a preemption or a replay repeats. Useful are the tokens that no step computed before and that
became part of the sequence:

    [ cached | counted before ......... | this step, useful .............. | rejected drafts ]
                       ^ start may lie here   ^ num_counted_tokens moves to the end of the useful part

Source of the counts: Chowdhery et al., PaLM, 2022, appendix B, forward pass only.
"""

from __future__ import annotations

from service.engine.sequences.sequence import Sequence


class PhaseTally:
    """Counts of one phase in one step."""

    __slots__ = ("encoder_pairs", "encoder_tokens", "kv_positions", "pairs", "rows", "sampled", "tokens")

    def __init__(self) -> None:
        self.rows = 0
        """All computed rows, useful or not."""
        self.kv_positions = 0
        """Positions whose keys and values were read or written."""
        self.tokens = 0
        """Useful tokens, without those that an encoder reads."""
        self.pairs = 0
        """Query-key pairs of the useful tokens: a token at position p has p + 1."""
        self.sampled = 0
        self.encoder_tokens = 0
        self.encoder_pairs = 0


class Tally:
    """Both phases of the step in progress."""

    __slots__ = ("decode", "prefill")

    def __init__(self) -> None:
        self.prefill = PhaseTally()
        self.decode = PhaseTally()

    def take(self) -> tuple[PhaseTally, PhaseTally]:
        """Returns (prefill, decode) since the last call."""
        taken = self.prefill, self.decode
        self.prefill, self.decode = PhaseTally(), PhaseTally()
        return taken

    def add(self, sequence: Sequence, start: int, num_tokens: int, num_known: int, num_new: int) -> None:
        """Counts an item that computed `num_tokens` from position `start` on, `num_known` of them no drafts, and gave
        `num_new` tokens. Behind the first, each new token stands for a draft that was right."""
        phase = self.decode if num_known == 1 and start >= sequence.num_prompt_tokens else self.prefill
        end = start + num_known
        if num_new > 1:
            end += num_new - 1
        phase.rows += num_tokens
        phase.kv_positions += start + 2 * num_tokens
        phase.sampled += num_new
        first = sequence.num_counted_tokens
        if first < start:
            first = start
        if end <= first:
            return
        sequence.num_counted_tokens = end
        if sequence.num_encoder_slots:
            first = self._add_encoded(phase, sequence, first, end)
        count = end - first
        phase.tokens += count
        phase.pairs += count * (first + end + 1) // 2

    def _add_encoded(self, phase: PhaseTally, sequence: Sequence, first: int, end: int) -> int:
        """Counts the encoder's input, without its padding, and what the decoder's tokens see of it. Returns the first
        token of the decoder; its positions begin behind the encoder's slots."""
        slots, length = sequence.num_encoder_slots, len(sequence.request.token_ids)
        if first < slots:
            phase.encoder_tokens += length
            phase.encoder_pairs += length * length
            first = slots
        phase.pairs += (end - first) * (length - slots)
        return first
