"""Users and access control lists of RocketMQ 5 (ACL 2.0), without I/O. See docs/auth.md.

| module | what |
|---|---|
| `model` | users, resources, entries, policies, and their numbers and names |
| `source_ips` | addresses that an entry holds for |
| `decisions` | which entry decides about a request |
| `tables` | all users and ACLs of a broker, and their changes |
| `stored` | their JSON in a file, and in RocketMQ's own stores |
| `bodies` | their JSON in requests and answers |
"""
