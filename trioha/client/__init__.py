"""Clients of a cluster: producer and consumer over name servers and brokers (spec remoting 3, 4, 7)."""
