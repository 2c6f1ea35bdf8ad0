"""Storage lays versions on the disk: durable writes, staging, the journal of aliases, and the view that BentoML has."""
