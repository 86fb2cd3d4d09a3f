"""What callers can do with the resources, over the ports of the domain."""
