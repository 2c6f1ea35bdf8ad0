"""The store UI: a frame for each address, its scripts and styles, and the sign-in. It shows what the public API answers
and knows nothing else."""
