"""What the routes answer, as models: they describe `/openapi.json`, and tests hold every answer against them.

No response passes through them at run time: routes write plain values, which is many times as fast.
"""
