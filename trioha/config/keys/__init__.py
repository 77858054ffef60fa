"""The keys of a broker.conf, a module for each room that they are for.

Each has a class of which `BrokerConfig` is made; comparing and showing values is left to that.
"""
