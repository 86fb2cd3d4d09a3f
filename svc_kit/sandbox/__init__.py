"""Limited child processes for work whose cost an outsider chooses."""
