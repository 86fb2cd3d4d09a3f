"""Every query of the service, by resource; the project comes first, frozen dataclasses come out."""
