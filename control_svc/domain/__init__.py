"""Resources and their rules: frozen dataclasses, without transport, database or clock."""
