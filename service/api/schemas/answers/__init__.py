"""These models describe what the routes answer: `/openapi.json` shows them, and tests check every answer against them.

No response passes through them at run time: routes write plain values, which is many times as fast.
"""
