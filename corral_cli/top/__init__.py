"""`corral top`: the load of a running inference service, live."""
