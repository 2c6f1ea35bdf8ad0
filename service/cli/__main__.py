"""`python -m service.cli`: the same as `dosirak`."""

from service.cli import main

main()
