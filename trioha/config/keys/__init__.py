"""The keys of a broker.conf, a module for each room that they are for."""
