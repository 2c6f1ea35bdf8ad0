"""What every field of every request's body does, a table for each dialect; `tests/api/test_every_field.py` reads them.

A new field needs one entry: `acts` says where it shows, `refuses` says that it cannot act. Fields that a model lists
under `later` need none.
"""
