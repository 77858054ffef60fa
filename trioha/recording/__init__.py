"""What a node did, recorded once and read by all: event types, recorder, reader and fold."""
