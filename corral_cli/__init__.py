"""The `corral` command. It imports the services; no service imports it."""
