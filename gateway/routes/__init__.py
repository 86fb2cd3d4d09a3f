"""Routes: validate the request, call a service, and convert its reply."""
