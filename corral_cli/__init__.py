"""The `corral` command: what people type, above all services and imported by none of them."""
