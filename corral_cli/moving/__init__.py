"""Moving house: assistants, threads and messages out of one server and into another."""
