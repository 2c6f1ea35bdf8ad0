"""These tables say what every field of every request's body does, one for each dialect; `test_every_field` reads them.

A new field needs one entry: `acts` says where it shows, `refuses` says that it cannot act. Fields that a model lists
under `later` need none.
"""
