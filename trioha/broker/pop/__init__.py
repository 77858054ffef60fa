"""POP consumption: messages are handed out for a time, and given again unless they are acknowledged."""
