"""Text out of files that anybody may have made, read in limited child processes."""
