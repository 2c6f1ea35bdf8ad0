"""This dialect is OpenAI's responses: items go in, items come out, and a stream has an event for each step of an item.

body ─▶ parsing ─▶ GenerationRequest ─▶ answer ─▶ serialiser ─▶ a response, or its events
          └ items: items become messages              └ output: deltas become items
"""
