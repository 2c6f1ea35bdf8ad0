"""Storage puts versions on the disk: durable writes, staging, the journal of aliases, and BentoML's view of them."""
