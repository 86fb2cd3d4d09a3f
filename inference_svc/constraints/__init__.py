"""Output held to a form: grammars are proven in a limited child process, followed in the engine."""
