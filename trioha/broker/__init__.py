"""What remoting requests do: puts, and what a broker says of itself."""
