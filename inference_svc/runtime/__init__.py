"""Where the engine process is started, watched, fed and listened to."""
