"""The data plane of Corral: tokens in, tokens out, over gRPC; no database."""
