"""Explains what is wrong with RocketMQ and trioha HA pairs.

Facts go in, findings come out: `trioha.doctor.collector` asks brokers, name servers and files,
`trioha.doctor.diagnosis` runs the checks of `trioha.doctor.checks` on the answers without any I/O.
"""
