"""How each part of the control service is put together from the settings."""
