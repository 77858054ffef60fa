"""The name server: which broker has which topics, and where it listens (spec remoting 3)."""
