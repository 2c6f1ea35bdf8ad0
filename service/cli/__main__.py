"""`python -m service.cli` is the same as `dosirak`."""

from service.cli import main

main()
