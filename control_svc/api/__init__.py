"""gRPC: servicers that convert, call and convert."""
