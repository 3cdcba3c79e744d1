"""Nodes and queues: dispatch, placement, heartbeat, enrolment, cancel, reap."""
